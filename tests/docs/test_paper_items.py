"""The page that maps the paper to names and tests: nothing missing, and nothing made up."""

from __future__ import annotations

import ast
import json
import re
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/paper_items.md").read_text(encoding="utf-8")
# What the paper's source numbers, in its order, with its own labels: every numbered environment but
# the sections, by which the page is ordered.
NUMBERED = json.loads((Path(__file__).parent / "paper_numbering.json").read_text(encoding="utf-8"))
ROW = re.compile(r"^\| (\w+ \(?\d+\)?) \| (.+) \| (.+) \| `(.+)` \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)


def test_every_item_of_the_paper_has_its_row():
    """In the section where the paper has it, and in its order."""
    sections = re.split(r"^## Section (\d+)$", PAGE, flags=re.MULTILINE)[1:]
    found = [
        (int(section), item)
        for section, text in zip(sections[::2], sections[1::2], strict=True)
        for item, *_ in ROW.findall(text)
    ]
    expected = [(entry["section"], named(entry)) for entry in NUMBERED]
    assert found == expected
    assert len(ROWS) == len(re.findall(r"^\| (?!item|---)", PAGE, re.MULTILINE))


def test_numbers_run_from_one():
    kinds = {entry["kind"] for entry in NUMBERED}
    assert kinds == {"Equation", "Example", "Algorithm", "Remark", "Figure", "Table"}
    for kind in kinds:
        numbers = [entry["number"] for entry in NUMBERED if entry["kind"] == kind]
        assert numbers == list(range(1, len(numbers) + 1))
    labels = [entry["label"] for entry in NUMBERED if entry["label"]]
    assert len(set(labels)) == len(labels)


def named(entry):
    number = entry["number"]
    return (
        f"{entry['kind']} ({number})"
        if entry["kind"] == "Equation"
        else f"{entry['kind']} {number}"
    )


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
        assert name.startswith("test_"), (item, test)
        assert name in defined, (item, test)
