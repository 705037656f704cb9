"""A finding made small: every simplification that keeps it is kept.

python -m oracle.shrink RECIPE.json      (from the folder stress, with legato on the path)
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from oracle.judge import judge
from oracle.program import program
from oracle.recipes import Recipe


def shrink(recipe: Recipe, kind: str, seconds: float = 60.0) -> Recipe:
    """The smallest recipe found in so many seconds that still gives a finding of this kind."""
    end = time.monotonic() + seconds
    best = without_unused(recipe)
    if not _shows(best, kind):
        best = recipe
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for candidate in simpler(best):
            if time.monotonic() > end:
                break
            if _shows(candidate, kind):
                best, progress = candidate, True
                break
    return best


def _shows(recipe: Recipe, kind: str) -> bool:
    try:
        return kind in judge(recipe).findings
    except Exception:  # a simplification that makes no sense
        return False


def simpler(recipe: Recipe) -> Iterator[Recipe]:
    """Simplifications, those that gain most first."""
    for made in _all(recipe):
        yield without_unused(made)


def _all(recipe: Recipe) -> Iterator[Recipe]:
    yield from _fewer_elements(recipe)
    yield from _fewer_terms(recipe)
    yield from _default_options(recipe)
    yield from _plainer_terms(recipe)
    yield from _fewer_coordinates(recipe)
    yield from _fewer_parameters(recipe)
    yield from _rounder_numbers(recipe)


def without_unused(recipe: Recipe) -> Recipe:
    """Without entries of θ that nothing names."""
    words = json.dumps([recipe["terms"], recipe["algorithm"]])
    made = copy.deepcopy(recipe)
    made["theta"] = {k: v for k, v in made["theta"].items() if f'"{k}"' in words}
    made["ordered"] = [p for p in made.get("ordered", []) if all(n in made["theta"] for n in p)]
    return made


def _fewer_elements(recipe: Recipe) -> Iterator[Recipe]:
    sizes = recipe["sizes"]
    if sizes is None or recipe["form"] == "blocks":
        return
    for drop in range(len(sizes)):
        made = copy.deepcopy(recipe)
        alone = len(sizes) == 1
        nested = [made["theta"][n] for n, e in recipe["theta"].items() if e["batched"]]
        for entry in nested:
            entry["value"] = entry["value"][0] if alone else _without(entry["value"], drop)
            entry["batched"] = not alone
        made["loss"]["c"] = made["loss"]["c"][0] if alone else _without(made["loss"]["c"], drop)
        made["loss"]["sizes"] = None if alone else _without(made["loss"]["sizes"], drop)
        if alone and sizes != [1.0]:
            continue
        made["sizes"] = None if alone else _without(sizes, drop)
        start = made.get("start")
        if start is not None and "value" in start:
            start["value"] = start["value"][0] if alone else _without(start["value"], drop)
        yield made
    if set(sizes) != {1.0} or set(recipe["loss"]["sizes"]) != {1.0}:
        made = copy.deepcopy(recipe)
        made["loss"]["sizes"] = [1.0] * len(sizes)
        yield made


def _without(values: list[Any], index: int) -> list[Any]:
    return [v for i, v in enumerate(values) if i != index]


def _fewer_terms(recipe: Recipe) -> Iterator[Recipe]:
    for drop, term in enumerate(recipe["terms"]):
        if len(recipe["terms"]) > 1 and term.get("role") != "penalty":
            yield {**recipe, "terms": _without(recipe["terms"], drop)}


def _default_options(recipe: Recipe) -> Iterator[Recipe]:
    if recipe.get("start") is not None:
        yield {**recipe, "start": None}
    if recipe["dtype"] != "float64":
        yield {**recipe, "dtype": "float64"}
    algorithm = recipe["algorithm"]
    if algorithm is not None:
        for name in algorithm:
            if name != "name":
                yield {**recipe, "algorithm": {k: v for k, v in algorithm.items() if k != name}}
    for name in ("terms", "last", "checkpoint", "tol"):
        if name in recipe["gradient"]:
            kept = {k: v for k, v in recipe["gradient"].items() if k != name}
            yield {**recipe, "gradient": kept}


def _plainer_terms(recipe: Recipe) -> Iterator[Recipe]:
    for number, term in enumerate(recipe["terms"]):
        for made in _plainer(term):
            yield {
                **recipe,
                "terms": [made if i == number else t for i, t in enumerate(recipe["terms"])],
            }


def _plainer(term: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("scale", "shift", "op", "smoothed"):
        if term.get(name) is not None and not (name == "op" and term["op"]["op"] == "Stack"):
            yield {k: v for k, v in term.items() if k != name}
    operator = term.get("op")
    if operator is not None and operator["op"] == "Stack":
        for part, block in zip(operator["operators"], term["blocks"], strict=True):
            kept = {k: v for k, v in term.items() if k not in ("blocks", "op", "f")}
            yield {**kept, **block, "op": part}
    elif operator is not None:
        for inner in _plainer_operators(operator):
            yield {**term, "op": inner}
    for name, value in term.get("args", {}).items():
        args = term["args"]
        if name in ("weight", "groups", "dim") and term["f"] not in ("BregmanTerm",):
            yield {**term, "args": {k: v for k, v in args.items() if k != name}}
        if isinstance(value, dict) and "op" in value:
            for inner in _plainer_operators(value):
                yield {**term, "args": {**args, name: inner}}


def _plainer_operators(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("operator", "inner", "outer", "first", "second"):
        if isinstance(spec.get(name), dict):
            yield spec[name]
            for inner in _plainer_operators(spec[name]):
                yield {**spec, name: inner}
    if spec["op"] == "Differences" and spec.get("weights") is not None:
        yield {k: v for k, v in spec.items() if k != "weights"}
    if spec["op"] == "Dense":
        yield {"op": "Identity"}


def _fewer_coordinates(recipe: Recipe) -> Iterator[Recipe]:
    """Drop an entry of the last axis, wherever an axis of θ has that size; or a matrix's row."""
    if recipe["form"] == "blocks":
        return
    n = recipe["shape"][-1]
    for drop in range(n if n > 1 else 0):
        made = copy.deepcopy(recipe)
        made["shape"] = [*recipe["shape"][:-1], n - 1]
        for entry in made["theta"].values():
            value = np.asarray(entry["value"])
            for axis in range(value.ndim):
                if value.shape[axis] == n and not (axis == 0 and entry["batched"]):
                    value = np.delete(value, drop, axis)
            entry["value"] = value.tolist()
        made["loss"]["c"] = np.delete(np.asarray(made["loss"]["c"]), drop, -1).tolist()
        start = made.get("start")
        if start is not None and "value" in start:
            start["value"] = np.delete(np.asarray(start["value"]), drop, -1).tolist()
        step = (made["algorithm"] or {}).get("step") or {}
        if "vector" in step:
            step["vector"] = np.delete(np.asarray(step["vector"]), drop, -1).tolist()
        for term in made["terms"]:
            groups = term.get("args", {}).get("groups")
            if groups is not None:
                groups["ints"] = _without(groups["ints"], drop)
        yield made
    for size in {len(row) for row in _rows(recipe)} - {n}:
        made = copy.deepcopy(recipe)
        for entry in made["theta"].values():
            value = np.asarray(entry["value"])
            for axis in range(value.ndim):
                if value.shape[axis] == size and size > 1:
                    value = np.delete(value, size - 1, axis)
            entry["value"] = value.tolist()
        yield made


def _rows(recipe: Recipe) -> list[Any]:
    return [e["value"] for e in recipe["theta"].values() if np.ndim(e["value"]) == 2]


def _fewer_parameters(recipe: Recipe) -> Iterator[Recipe]:
    for name, entry in recipe["theta"].items():
        if entry["kind"] != "fixed":
            made = copy.deepcopy(recipe)
            made["theta"][name]["kind"] = "fixed"
            yield made


def _rounder_numbers(recipe: Recipe) -> Iterator[Recipe]:
    for digits in (1, 2):
        made = copy.deepcopy(recipe)
        for entry in made["theta"].values():
            entry["value"] = _rounded(entry["value"], digits)
        made["loss"]["c"] = _rounded(made["loss"]["c"], digits)
        if made != recipe:
            yield made
    for name in recipe["theta"]:
        made = copy.deepcopy(recipe)
        made["theta"][name]["value"] = _rounded(made["theta"][name]["value"], 1)
        if made != recipe:
            yield made


def _rounded(value: Any, digits: int) -> Any:
    array = np.asarray(value, float)
    return np.vectorize(lambda v: float(f"{v:.{digits}g}"))(array).tolist()


def main() -> None:
    recipe = json.loads(Path(sys.argv[1]).read_text())
    for kind, detail in judge(recipe).findings.items():
        small = shrink(recipe, kind)
        print(f"# {kind}: {judge(small).findings.get(kind, detail)}")
        print(program(small))
        print(f"# recipe: {json.dumps(small)}\n")


if __name__ == "__main__":
    main()
