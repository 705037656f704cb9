"""Every page of the gallery runs, is short, and keeps the promises it asserts."""

from __future__ import annotations

import ast
import importlib
import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples" / "gallery"
PAGES = sorted(FOLDER.glob("plot_*.py"))
prox = importlib.import_module("legato.functions.prox")  # the name alone is the function
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    """Pages register proxes of their own and draw; other tests must not see either."""
    table = dict(prox._TABLE)
    yield
    prox._TABLE.clear()
    prox._TABLE.update(table)
    prox._RESOLVED.clear()
    plt.close("all")


def test_the_gallery_is_complete() -> None:
    """One page an idea; sphinx-gallery takes all files of this name."""
    ideas = (
        "denoise_tv learned_filters spatial_weight many_penalties nnls_deconvolution unmixing "
        "matrix_game sparse_coding iterations_smooth boundary truncation forward_reverse ergodic "
        "choose_gradient own_function own_geometry own_operator own_algorithm potts"
    )
    assert {f"plot_{idea}" for idea in ideas.split()} <= {page.stem for page in PAGES}
    assert (FOLDER / "README.rst").read_text(encoding="utf-8").startswith("Gallery\n=======")


@every_page
def test_it_runs_and_keeps_its_promises(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(str(page), run_name="__main__")
    assert plt.get_fignums(), "no figure was drawn"
    assert all(axis.has_data() for axis in plt.gcf().axes)
    assert capsys.readouterr().out.strip(), "nothing was said"
    assert torch.get_default_dtype() == torch.float32


@every_page
def test_it_is_short_and_asserts_what_it_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) <= 60
    tree = ast.parse(text)
    title, underline, *_ = (ast.get_docstring(tree) or "").splitlines()
    assert underline == "=" * len(title)
    assert "\n# %%\n# " in text
    assert isinstance(tree.body[-1], (ast.Assert, ast.Expr))
    assert any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    modules = {
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert not [m for m in modules if "legato" in m and "._" in m], "public names only"
