"""Examples import what the API pages document; experiments import nothing private.

Also run by ``make lint``.
"""

import ast
import importlib
from pathlib import Path

import pytest

from documented import PAGES

ROOT = Path(__file__).parents[1]


def imports(script):
    """(module, name) of everything imported from legato; the name of a whole module is None."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        yield from (pair for pair in found if pair[0].partition(".")[0] == "legato")


def scripts(folder):
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in found]


def is_documented(module, name):
    if name is None or f"{module}.{name}" in PAGES:
        return (module if name is None else f"{module}.{name}") in PAGES
    return module in PAGES and name in getattr(
        importlib.import_module(module), "__all__", dir(importlib.import_module(module))
    )


@pytest.mark.parametrize("script", scripts("examples"))
def test_examples_import_what_is_documented(script):
    assert [pair for pair in imports(script) if not is_documented(*pair)] == []


@pytest.mark.parametrize("script", scripts("experiments"))
def test_experiments_import_nothing_private(script):
    private = [
        (module, name)
        for module, name in imports(script)
        if any(part.startswith("_") for part in [*module.split("."), name or ""])
    ]
    assert private == []
