"""Formulas become the markup that browsers draw, or an error; never something in between."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

math_core = pytest.importorskip("math_core", reason="the site is built by packages of legato[docs]")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from mathml import in_commands, to_mathml  # noqa: E402  (its folder is no package)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("‖x‖₁", "‖x‖_{1}"),
        ("x⁻¹²", "x^{−12}"),
        ("½‖x − x̂‖²", r"\tfrac{1}{2}‖x − \hat{x}‖^{2}"),
        ("A_x^⊤ξ", r"A_x^\top ξ"),
        ("ℓ ≤ 𝒜(ḡ)", "ℓ ≤ 𝒜(ḡ)"),
    ],
)
def test_small_and_accented_characters_become_commands(written, meant):
    assert in_commands(written) == meant


def test_a_dot_can_be_lifted_off_its_letter():
    assert '<mo class="dot">˙</mo>' in to_mathml("x\u0307", block=False)
    assert '<mo class="dot">˙</mo>' in to_mathml(r"\dot x", block=True)


def test_lines_align_at_their_marks():
    rows = ElementTree.fromstring(to_mathml("a &= b \\\\ c &= d", block=True)).findall(".//mtr")
    assert [["".join(cell.itertext()) for cell in row] for row in rows] == [
        ["a", "=b"],
        ["c", "=d"],
    ]


@pytest.mark.parametrize(
    "latex", [r"\unheard{x}", "{x", r"\begin{odd}x\end{odd}", r"\frac{1}", "x}", r"\left( x"]
)
def test_what_is_not_known_is_refused(latex):
    with pytest.raises(math_core.LatexError):
        to_mathml(latex, block=False)


def test_no_formula_of_the_site_is_left_as_code(site):
    """A formula that failed would stand there as LaTeX."""
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    found = [math for text in pages.values() for math in re.findall(r"<math.*?</math>", text)]
    assert len(found) > 100
    assert not [math for math in found if "\\" in math]
    assert not [page for page, text in pages.items() if re.search(r'class="formula"><code', text)]
