"""What a recipe holds, in words that quotas can count."""

from __future__ import annotations

from typing import Any

from oracle.recipes import Recipe


def features(recipe: Recipe) -> set[str]:
    """Everything that quotas ask for."""
    found = {f"dtype: {recipe['dtype']}", f"form: {recipe['form']}"}
    found |= {f"batch: {_batch(recipe['sizes'])}", f"start: {_start(recipe.get('start'))}"}
    for term in recipe["terms"]:
        found |= _term_features(term)
    found |= _algorithm_features(recipe["algorithm"])
    gradient = recipe["gradient"]
    options = [f"{k}" for k in ("last", "checkpoint", "tol") if gradient.get(k) is not None]
    if "solver" in gradient:
        options = [gradient["solver"]["name"]]
    found.add(f"strategy: {gradient['name']}({', '.join(options)})")
    return found


def _batch(sizes: Any) -> str:
    if sizes is None:
        return "none"
    return "of one size" if max(sizes) == min(sizes) else "of many sizes"


def _start(start: Any) -> str:
    return "none" if start is None else "point" if "value" in start else f"another's {start['as']}"


def _term_features(term: dict[str, Any]) -> set[str]:
    found = {f"term: {term['f']}"} if term.get("blocks") is None else {"term: Separable"}
    for block in term.get("blocks") or []:
        found |= _term_features(block)
    for key, name in (("scale", "Scaled"), ("shift", "Shifted"), ("conjugate", "Conjugate")):
        if term.get(key):
            found.add(f"term: {name}")
    if term.get("smoothed"):
        found.add(f"term: {term['f']} smoothed")
    if term.get("op") is not None:
        found |= {"term: Composed", *_operator_features(term["op"])}
    for value in term.get("args", {}).values():
        if isinstance(value, dict) and "op" in value:
            found |= _operator_features(value)
        if isinstance(value, dict) and "geometry" in value:
            found.add(f"kernel: {value['geometry']}")
        if isinstance(value, dict) and "callable" in value:
            found.add(f"callable: {value['callable']}")
    return found


def _operator_features(spec: dict[str, Any]) -> set[str]:
    found = {f"operator: {spec['op']}"}
    for value in spec.values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict) and "op" in inner:
                found |= _operator_features(inner)
    return found


def _algorithm_features(spec: dict[str, Any] | None) -> set[str]:
    if spec is None:
        return {"algorithm: chosen"}
    found = {f"algorithm: {spec['name']}"}
    for name in ("geometry", "dual_geometry"):
        inner = spec.get(name)
        found.add(f"{name}: {inner['geometry'] if inner else 'Euclidean'}")
        for block in (inner or {}).get("blocks", []):
            found.add(f"{name}: {block['geometry'] if block else 'Euclidean'}")
    for option in ("inertia", "step", "steps", "balance", "precondition", "average"):
        value = spec.get(option)
        if value:
            word = next(iter(value)) if isinstance(value, dict) else ""
            found.add(f"option: {option} {word}".strip())
    return found
