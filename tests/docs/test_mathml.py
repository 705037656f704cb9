"""Formulas become the markup that browsers draw, or an error; never something in between."""

import importlib
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from mathml import MathError, to_mathml  # noqa: E402  (its folder is no package)

MODULES = [
    "functions", "geometry", "operators", "algorithms", "gradients", "problems", "optim",
    "bilevel", "nn", "sklearn",
]  # fmt: skip


def tags(latex, *, block=False):
    root = ElementTree.fromstring(to_mathml(latex, block=block))
    return re.sub(r"\s(\w+)=\"[^\"]*\"", "", "".join(_flat(child) for child in root))


def _flat(node):
    inside = (node.text or "") + "".join(_flat(child) for child in node)
    return f"{node.tag[1:] if node.tag in ('mi', 'mn', 'mo') else node.tag}({inside})"


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        ("x^2", "msup(i(x)n(2))"),
        ("x²", "msup(i(x)n(2))"),
        ("x_i^{n+1}", "msubsup(i(x)i(i)mrow(i(n)o(+)n(1)))"),
        (r"\tfrac12", "mstyle(mfrac(n(1)n(2)))"),
        ("½", "mstyle(mfrac(n(1)n(2)))"),
        (r"\frac{1}{10}", "mfrac(n(1)n(10))"),
        ("‖x‖₁", "mrow(o(‖)i(x)msub(o(‖)n(1)))"),
        (r"\|x\|_1", "mrow(o(‖)i(x)msub(o(‖)n(1)))"),
        (r"a \le b", "mrow(i(a)o(≤)i(b))"),
        (r"\min_x f", "mrow(munder(o(min)i(x))i(f))"),
        (r"\operatorname{prox}_{g}(y)", "mrow(msub(o(prox)i(g))o(()i(y)o()))"),
        ("f'", "msup(i(f)o(′))"),
        ("0.5", "n(0.5)"),
        (r"\text{if } x", "mrow(mtext(if\u00a0)i(x))"),
    ],
)
def test_markup(latex, expected):
    assert tags(latex) == expected


def test_lines_align_at_their_marks():
    assert tags("a &= b \\\\ c &= d", block=True) == (
        "mtable(mtr(mtd(i(a))mtd(mrow(o(=)i(b))))mtr(mtd(i(c))mtd(mrow(o(=)i(d)))))"
    )


@pytest.mark.parametrize(
    ("latex", "sign"),
    [("-x", "prefix"), ("a = -x", "prefix"), ("(-x)", "prefix"), ("a - x", None), (")-x", None)],
)
def test_a_sign_is_binary_only_after_something(latex, sign):
    root = ElementTree.fromstring(to_mathml(latex, block=False))
    (minus,) = (node for node in root.iter("mo") if node.text == "−")
    assert minus.get("form") == sign


@pytest.mark.parametrize(
    "latex", [r"\unheard{x}", "{x", r"\begin{odd}x\end{odd}", r"\frac{1}", "x}", r"\left( x", "²"]
)
def test_what_is_not_known_is_refused(latex):
    with pytest.raises(MathError):
        to_mathml(latex, block=False)


def test_every_formula_of_the_docstrings_is_understood():
    found = 0
    for name in MODULES:
        module = importlib.import_module(f"legato.{name}")
        for member in vars(module).values():
            text = getattr(member, "__doc__", None) or ""
            for formula in re.findall(r"\.\. math::((?:[^\n]*)(?:\n(?: {8}[^\n]*)?)*)", text):
                ElementTree.fromstring(to_mathml(formula, block=True))
                found += 1
    assert found > 30
