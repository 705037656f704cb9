"""Every page of the gallery runs, is short, keeps the promises it asserts, and can be read.

A page is run block by block, and its figures are closed after each block, as sphinx-gallery does:
a figure that one block makes and the next completes would be shown unfinished.
"""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

FOLDER = Path(__file__).parents[1] / "examples" / "gallery"
SECTIONS = ("first_steps", "imaging", "statistics", "which_gradient", "extend")
PAGES = sorted(FOLDER.glob("*/plot_*.py"))
SHOWN = 864  # pixels: as wide as the site's text, and so a figure's width on a page
prox = importlib.import_module("legato.functions.prox")  # the name alone is the function
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    """Pages register proxes of their own and draw; other tests must not see either."""
    table = dict(prox._TABLE)
    yield
    imported = {  # by modules that the page was the first to need
        pair: form
        for pair, form in prox._TABLE.items()
        if all(kind.__module__.startswith("legato.") for kind in pair)
    }
    prox._TABLE.clear()
    prox._TABLE.update(imported | table)
    prox._RESOLVED.clear()
    plt.close("all")


def blocks(page: Path) -> list[str]:
    """The code between the page's ``# %%`` marks; the docstring is text."""
    return re.split(r"^# %%\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


def faults(figure: Figure) -> list[str]:
    """What keeps a reader from reading a figure."""
    found = []
    figure.canvas.draw()
    width = figure.get_size_inches()[0]
    scale = min(100.0, SHOWN / width)  # pixels of the page for each inch
    for number, axis in enumerate(figure.axes):
        name = f"axes {number} ({axis.get_title()!r})"
        if not axis.has_data():
            found.append(f"{name} is empty")
        if not _labelled(axis):
            found.append(f"{name} has no title or labels")
        box = axis.get_window_extent()
        high, wide = (side / figure.dpi * scale for side in (box.height, box.width))
        if axis.get_label() != "<colorbar>" and min(high, wide) < 80:
            found.append(f"{name} is {wide:.0f} × {high:.0f} pixels")
    for text in figure.findobj(Text):
        pixels = text.get_fontsize() / 72 * scale
        if text.get_visible() and text.get_text().strip() and pixels < 9.5:
            found.append(f"{text.get_text()!r} is {pixels:.1f} pixels high")
    return found


def _labelled(axis: Axes) -> bool:
    """A picture has a title; a plot says what its axes are, the upright one perhaps by a title."""
    title = axis.get_title()
    if axis.get_label() == "<colorbar>" or (axis.images and not axis.lines):
        return bool(title) or axis.get_label() == "<colorbar>"
    shared = axis.get_shared_y_axes().get_siblings(axis)
    upright = any(other.get_ylabel() for other in shared)
    return bool(axis.get_xlabel()) and (upright or bool(title))


def test_the_gallery_is_complete() -> None:
    """One page an idea; sphinx-gallery takes all files of this name."""
    ideas = (
        "first_solution denoise_tv learned_filters spatial_weight many_penalties unmixing potts "
        "nnls_deconvolution matrix_game sparse_coding iterations_smooth boundary truncation "
        "forward_reverse ergodic choose_gradient own_function own_geometry own_operator "
        "own_algorithm portfolio deblurring tomography mri poisson quantile_regression "
        "matrix_completion shortest_path control learned_constraints"
    )
    assert {f"plot_{idea}" for idea in ideas.split()} <= {page.stem for page in PAGES}
    assert {page.parent.name for page in PAGES} == {*SECTIONS}
    assert not [*FOLDER.glob("plot_*.py")], "a page belongs to a section"
    for readme in (FOLDER / "README.rst", *(FOLDER / name / "README.rst" for name in SECTIONS)):
        title, underline, *_ = readme.read_text(encoding="utf-8").splitlines()
        assert {*underline} in ({"="}, {"-"})
        assert len(underline) == len(title)


@every_page
def test_it_runs_and_its_figures_can_be_read(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"__name__": "__main__", "__file__": str(page)}
    drawn = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks(page):
            exec(compile(block, str(page), "exec"), names)
            for number in plt.get_fignums():
                drawn += 1
                assert not faults(plt.figure(number))
            plt.close("all")
    assert drawn == 1, "one page, one figure"
    said = capsys.readouterr().out
    assert said.strip(), "nothing was said"
    assert "object at 0x" not in said
    assert torch.get_default_dtype() == torch.float32


def test_unfinished_figures_are_found() -> None:
    """The check can fail: an empty panel, no label, letters too small, a panel too small."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3))
    axes[0].plot([1, 2])
    assert [fault for fault in faults(figure) if "is empty" in fault]
    assert len([fault for fault in faults(figure) if "no title" in fault]) == 2
    axes[0].set(xlabel="x", ylabel="y", title="t")
    axes[1].imshow([[1.0]])
    axes[1].set_title("small", fontsize=6)
    assert [fault.partition(" is")[0] for fault in faults(figure)] == ["'small'"]
    crowd, _ = plt.subplots(1, 20, figsize=(10, 3))
    assert [fault for fault in faults(crowd) if "pixels" in fault]


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


@every_page
def test_its_card_has_one_sentence(page: Path) -> None:
    """The first paragraph below the title stands on the page's card."""
    _, sentence, *_ = (ast.get_docstring(ast.parse(page.read_text("utf-8"))) or "").split("\n\n")
    assert re.fullmatch(r"[A-Z][^.?]*[.?]", sentence.replace("\n", " ")), sentence
    assert 40 <= len(sentence) <= 110


@every_page
def test_no_slow_path_is_shown(page: Path) -> None:
    """What readers copy is the default: fused kernels where there are some."""
    assert "kernel=" not in page.read_text(encoding="utf-8")
