"""The page that maps the paper to names and tests: nothing missing, and nothing made up."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/paper_items.md").read_text(encoding="utf-8")
COUNTS = {"Equation": 24, "Example": 8, "Algorithm": 3, "Remark": 4, "Figure": 8, "Table": 1}
ROWS = re.findall(r"^\| (\w+ \(?\d+\)?) \| (.+) \| (.+) \| `(.+)` \|$", PAGE, re.MULTILINE)


def test_every_item_of_the_paper_has_its_row():
    found = [item for item, *_ in ROWS]
    expected = [
        f"{kind} ({n})" if kind == "Equation" else f"{kind} {n}"
        for kind, count in COUNTS.items()
        for n in range(1, count + 1)
    ]
    assert sorted(found) == sorted(expected)
    assert len(ROWS) == len(re.findall(r"^\| (?!item|---)", PAGE, re.MULTILINE))


def test_every_name_exists():
    for item, _, names, _ in ROWS:
        found = re.findall(r"`([\w.]+)`", names)
        assert found, item
        for name in found:
            resolve(name)


def resolve(name: str) -> object:
    """The thing of a dotted name, through modules first and attributes then."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing: object = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            thing = getattr(thing, part)
        return thing
    raise AssertionError(name)


def test_every_test_exists():
    for item, _, _, test in ROWS:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), (item, file)
        defined = {
            node.name
            for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        }
        assert name in defined if name else any(n.startswith("test_") for n in defined), (
            item,
            test,
        )
