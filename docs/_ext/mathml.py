"""Mathematics as MathML, written by math-core while the site is built: no script, no network.

Formulas may use Unicode for letters, signs, accents and scripts (``x̂²`` for ``\\hat{x}^{2}``). What
math-core does not know fails the build: a page never shows half a formula.
"""

import re
from html import escape
from itertools import groupby
from typing import Any
from unicodedata import decomposition, normalize

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.util import logging

CONVERTER = LatexToMathML(fancy_error=False)
ACCENTS = {"\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0307": "dot"}


def in_commands(latex: str) -> str:
    """What Unicode writes as small or accented characters, as LaTeX does it."""
    accented = f"(.)([{''.join(ACCENTS)}])"
    latex = re.sub(accented, lambda m: rf"\{ACCENTS[m[2]]}{{{m[1]}}}", latex.replace("⊤", r"\top "))
    done = []
    for kind, run in groupby(latex, key=lambda c: decomposition(c).partition(" ")[0]):
        text = "".join(run)
        if kind in ("<super>", "<sub>"):
            done.append(f"{'^' if kind == '<super>' else '_'}{{{normalize('NFKC', text)}}}")
        elif kind == "<fraction>":
            halves = (normalize("NFKC", c).split("\u2044") for c in text)
            done += [rf"\tfrac{{{top}}}{{{bottom}}}" for top, bottom in halves]
        else:
            done.append(text)
    return "".join(done)


def to_mathml(latex: str, *, block: bool) -> str:
    """One formula as a ``<math>`` element; several lines align at their marks."""
    text = in_commands(latex.strip())
    if block and r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{aligned}}{text}\end{{aligned}}"
    markup = CONVERTER.convert_with_local_state(text, displaystyle=block)
    # Browsers set the dot of ẋ so low that it touches the letter; the style lifts what has a name.
    return markup.replace("<mo>˙</mo>", '<mo class="dot">˙</mo>')


def visit(translator: Any, node: Any) -> None:
    block = isinstance(node, nodes.math_block)
    try:
        markup = to_mathml(node.astext(), block=block)
    except LatexError as error:
        logging.getLogger(__name__).warning(f"{error} in {node.astext()!r}", location=node)
        markup = f"<code>{escape(node.astext())}</code>"
    translator.body.append(f'<div class="formula">{markup}</div>\n' if block else markup)
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit, None), (visit, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
