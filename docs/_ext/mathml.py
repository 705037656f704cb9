"""Mathematics as MathML, written while the site is built: no script, no font and no network.

Covers the part of LaTeX that legato's docstrings and pages use, with its symbols in LaTeX or in
Unicode (``\\le`` and ``≤``, ``x^2`` and ``x²``). Anything else raises, and the build fails with the
formula: a page never shows half a formula.
"""

from __future__ import annotations

import re
import unicodedata
from html import escape
from typing import Any, NamedTuple

SPACES = {",": 0.167, ":": 0.222, ";": 0.278, "!": -0.167, " ": 0.25, "quad": 1, "qquad": 2}
FUNCTIONS = {"log", "exp", "tanh", "artanh", "arg", "dim", "ker", "cos", "sin"}
LIMITS = {"min", "max", "sup", "inf", "lim"}
LETTERS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "varepsilon": "ε",
    "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π",
    "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "varphi": "φ", "psi": "ψ", "omega": "ω",
    "Delta": "Δ", "Omega": "Ω", "infty": "∞", "ldots": "…", "dots": "…", "top": "⊤", "ell": "ℓ",
    "emptyset": "∅",
}  # fmt: skip
RELATIONS = {
    "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠", "in": "∈", "approx": "≈",
    "to": "→", "rightarrow": "→", "leftarrow": "←", "longrightarrow": "⟶", "mapsto": "↦",
    "subset": "⊂", "subseteq": "⊆", "propto": "∝", "equiv": "≡", "colon": ":", "mid": "|",
    "iff": "⟺", "Rightarrow": "⇒", "sim": "∼",
}  # fmt: skip
BINARY = {"cdot": "·", "times": "×", "circ": "∘", "odot": "⊙", "pm": "±", "ast": "∗"}
ORDINARY = {"nabla": "∇", "partial": "∂"}
OPENING = {"langle": "⟨", "{": "{", "lbrace": "{", "lfloor": "⌊", "lceil": "⌈"}
CLOSING = {"rangle": "⟩", "}": "}", "rbrace": "}", "rfloor": "⌋", "rceil": "⌉"}
BARS = {"|": "‖", "Vert": "‖", "vert": "|", "lVert": "‖", "rVert": "‖"}
ACCENTS = {"bar": "¯", "hat": "^", "tilde": "~", "dot": "˙"}
COMBINING = {"\u0304": "¯", "\u0302": "^", "\u0303": "~", "\u0307": "˙", "\u0305": "¯"}
SCRIPT = {"A": "𝒜", "B": "ℬ", "E": "ℰ", "K": "𝒦", "L": "ℒ", "N": "𝒩", "P": "𝒫", "X": "𝒳"}
DIGITS = "0123456789"
BIG = {"big": 1.2, "bigl": 1.2, "bigr": 1.2, "Big": 1.8, "Bigl": 1.8, "Bigr": 1.8}
FRACTIONS = {"½": ("1", "2"), "¼": ("1", "4"), "⅓": ("1", "3"), "⅞": ("7", "8")}
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿᵀᵏᴺᴷ*", "0123456789+−n⊤kNK∗", strict=True)) | {"*": ""}
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ᵢⱼₖₙ", "0123456789+−ijkn", strict=True))
TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[^\s]" + f"[{''.join(COMBINING)}]?" + r"|\s+", re.DOTALL)


_ROOM = "@room"  # stands for a width until it is known


class MathError(ValueError):
    """A formula uses something this module does not know, or is not well formed."""


class Atom(NamedTuple):
    """A piece of MathML, what TeX would call it (for spacing), and whether limits go below it."""

    markup: str
    kind: str  # "ord", "rel", "bin", "open", "close", "punct", "fun", "space"
    limits: bool = False


def to_mathml(latex: str, *, block: bool) -> str:
    """One formula as a ``<math>`` element."""
    text = latex.strip()
    if block and "\\\\" in text and not text.startswith("\\begin{"):
        text = "\\begin{aligned}" + text + "\\end{aligned}"
    parser = _Parser(text)
    row = parser.row(())
    parser.expect_end()
    display = "block" if block else "inline"
    style = ' displaystyle="true"' if block else ""
    return (
        f'<math display="{display}"{style} alttext="{escape(" ".join(latex.split()))}">{row}</math>'
    )


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = TOKEN.findall(text)
        self.place = 0

    # --- tokens -----------------------------------------------------------------------------------

    def peek(self) -> str | None:
        while self.place < len(self.tokens) and self.tokens[self.place].isspace():
            self.place += 1
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise MathError(f"The formula ends too early: {self.text!r}")
        self.place += 1
        return token

    def expect(self, wanted: str) -> None:
        found = self.take()
        if found != wanted:
            raise MathError(f"Expected {wanted!r}, found {found!r} in {self.text!r}")

    def expect_end(self) -> None:
        if self.peek() is not None:
            raise MathError(f"Left over: {self.tokens[self.place :]!r} in {self.text!r}")

    def braced_text(self) -> str:
        """The raw text between braces, spaces kept."""
        self.expect("{")
        depth, parts = 1, []
        while depth:
            if self.place >= len(self.tokens):
                raise MathError(f"A brace is not closed in {self.text!r}")
            token = self.tokens[self.place]
            self.place += 1
            depth += (token == "{") - (token == "}")
            if depth:
                parts.append(" " if token.isspace() else token.removeprefix("\\"))
        return "".join(parts)

    # --- rows and atoms ---------------------------------------------------------------------------

    def row(self, ends: tuple[str, ...]) -> str:
        """Everything up to one of ``ends``, as one element."""
        parts: list[str] = []
        before = "open"
        while (token := self.peek()) is not None and token not in ends:
            if token in ("\\textstyle", "\\displaystyle"):
                self.take()
                style = "true" if token == "\\displaystyle" else "false"
                parts.append(f'<mstyle displaystyle="{style}">{self.row(ends)}</mstyle>')
                break
            atom = self.scripted(before)
            parts.append(atom.markup)
            if atom.kind != "space":
                before = atom.kind
        return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"

    def argument(self) -> str:
        """A braced group, or a single token: the 1 and the 2 of ``\\tfrac12``."""
        if self.peek() == "{":
            self.take()
            row = self.row(("}",))
            self.expect("}")
            return row
        return self.atom("open", alone=True).markup

    def scripted(self, before: str) -> Atom:
        atom = self.atom(before)
        below, above = "", ""
        while (token := self.peek()) is not None:
            if token == "_" and not below:
                self.take()
                below = self.argument()
            elif token == "^" and not above:
                self.take()
                above = self.argument()
            elif token == "'":
                self.take()
                above += "<mo>′</mo>"
            elif token in RAISED and RAISED[token] and not above:
                above = self.run_of(RAISED)
            elif token in LOWERED and not below:
                below = self.run_of(LOWERED)
            else:
                break
        # How much room a name such as "log" needs depends on what comes after its scripts.
        room = "0" if self._closes_up() else "0.167em"
        atom = atom._replace(markup=atom.markup.replace(_ROOM, room))
        if not below and not above:
            return atom
        under, over = ("under", "over") if atom.limits else ("sub", "sup")
        tag = f"m{under if below else ''}{over if above else ''}"
        kind = "fun" if atom.kind == "fun" else "close" if atom.kind == "close" else "ord"
        return Atom(f"<{tag}>{atom.markup}{below}{above}</{tag}>", kind)

    def run_of(self, table: dict[str, str]) -> str:
        """A run of Unicode superscripts or subscripts as one row."""
        letters = ""
        while self.peek() in table and table[self.peek() or ""]:
            letters += table[self.take()]
        found = [
            f"<mn>{part}</mn>" if part.isdigit() else f"<mi>{part}</mi>" if part.isalpha()
            else f"<mo>{part}</mo>"
            for part in re.findall(r"\d+|.", letters)
        ]  # fmt: skip
        return found[0] if len(found) == 1 else f"<mrow>{''.join(found)}</mrow>"

    def atom(self, before: str, *, alone: bool = False) -> Atom:
        token = self.take()
        if token.startswith("\\"):
            return self.command(token[1:], before)
        if token == "{":
            row = self.row(("}",))
            self.expect("}")
            return Atom(row, "ord")
        if token in DIGITS:
            while not alone and re.fullmatch(r"\d|\.", self._direct() or ""):
                if self._direct() == "." and (self._direct(1) or "-") not in DIGITS:
                    break
                token += self.take()
            return Atom(f"<mn>{token}</mn>", "ord")
        if len(token) == 2 and token[1] in COMBINING:
            return _accented(f"<mi>{escape(token[0])}</mi>", COMBINING[token[1]])
        return self.character(token, before)

    def _direct(self, ahead: int = 0) -> str | None:
        """The token right behind, without skipping spaces."""
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def character(self, c: str, before: str) -> Atom:
        if c in FRACTIONS:
            top, bottom = FRACTIONS[c]
            return Atom(_small_fraction(f"<mn>{top}</mn>", f"<mn>{bottom}</mn>"), "ord")
        if c in "([⟨":
            return Atom(_fence(c), "open")
        if c in ")]⟩":
            return Atom(_fence(c), "close")
        if c in "|‖":
            return Atom(_fence(c), "ord")
        if c in ",;":
            return Atom(f"<mo separator='true'>{c}</mo>", "punct")
        if c in "+-−±":
            return _sign({"-": "−"}.get(c, c), before)
        if c in BINARY.values() or c in "*/":
            return _binary({"*": "∗"}.get(c, c), before)
        if c in RELATIONS.values() or c in "=<>:≪≫⇔":
            return Atom(f"<mo>{escape(c)}</mo>", "rel")
        if c in "∑∏":
            return Atom(f'<mo movablelimits="true">{c}</mo>', "fun", limits=True)
        if c in "∇∂":
            return Atom(f'<mo form="prefix" lspace="0" rspace="0">{c}</mo>', "open")
        if c in "√":
            return Atom(f"<msqrt>{self.argument()}</msqrt>", "ord")
        if c in "!?.%":
            return Atom(f'<mo lspace="0" rspace="0">{c}</mo>', "ord")
        if c in "…∞∅⊤⊥":
            return Atom(f"<mi>{c}</mi>", "ord")
        if c in RAISED or c in LOWERED:
            raise MathError(f"{c!r} stands alone in {self.text!r}")
        if unicodedata.category(c)[0] == "L":
            return Atom(f"<mi>{c}</mi>", "ord")
        if unicodedata.category(c) == "Sm":  # the other mathematical symbols: ≲, ≃, ⊆ …
            return Atom(f"<mo>{c}</mo>", "rel")
        raise MathError(f"Unknown character {c!r} in {self.text!r}")

    # --- commands ---------------------------------------------------------------------------------

    def command(self, name: str, before: str) -> Atom:
        if name in SPACES:
            return Atom(f'<mspace width="{SPACES[name]}em"/>', "space")
        if name in LETTERS:
            return Atom(f"<mi>{LETTERS[name]}</mi>", "ord")
        if name in RELATIONS:
            return Atom(f"<mo>{RELATIONS[name]}</mo>", "rel")
        if name in BINARY:
            return _binary(BINARY[name], before)
        if name in ORDINARY:
            return self.character(ORDINARY[name], before)
        if name in OPENING:
            return Atom(_fence(OPENING[name]), "open")
        if name in CLOSING:
            return Atom(_fence(CLOSING[name]), "close")
        if name in BARS:
            return Atom(_fence(BARS[name]), "ord")
        if name in ("sum", "prod"):
            return self.character({"sum": "∑", "prod": "∏"}[name], before)
        if name in FUNCTIONS or name in LIMITS:
            return self.function(name, before, limits=name in LIMITS)
        if name in ("operatorname", "mathrm"):
            word = self.braced_text()
            return self.function(word, before, limits=False) if len(word) > 1 else Atom(
                f'<mi mathvariant="normal">{escape(word)}</mi>', "ord"
            )  # fmt: skip
        return self.structure(name)

    def function(self, name: str, before: str, *, limits: bool) -> Atom:
        """A name in upright letters, spaced as TeX does: not before a bracket."""
        lead = "0.167em" if before in ("ord", "close") else "0"
        movable = ' movablelimits="true"' if limits else ""
        return Atom(
            f'<mo form="prefix" lspace="{lead}" rspace="{_ROOM}"{movable}>{escape(name)}</mo>',
            "fun",
            limits,
        )

    def _closes_up(self) -> bool:
        """Whether what follows needs no space before it: brackets, spaces, the end."""
        after = self.peek()
        if after is None:
            return True
        name = after.removeprefix("\\")
        return after[0] in "([{)]}⟨&,|‖=" or name in (*BIG, "left", "right", *BARS, *SPACES)

    def structure(self, name: str) -> Atom:
        if name in ("frac", "dfrac"):
            return Atom(f"<mfrac>{self.argument()}{self.argument()}</mfrac>", "ord")
        if name == "tfrac":
            return Atom(_small_fraction(self.argument(), self.argument()), "ord")
        if name == "sqrt":
            return Atom(f"<msqrt>{self.argument()}</msqrt>", "ord")
        if name == "text":
            return Atom(f"<mtext>{_kept_spaces(self.braced_text())}</mtext>", "ord")
        if name == "texttt":
            return Atom(f'<mtext class="code">{escape(self.braced_text())}</mtext>', "ord")
        if name == "mathcal":
            letter = self.braced_text()
            if letter not in SCRIPT:
                raise MathError(f"No script letter {letter!r} in {self.text!r}")
            return Atom(f"<mi>{SCRIPT[letter]}</mi>", "ord")
        if name in ("mathrel", "mathbin"):
            return Atom(f"<mo>{escape(self.braced_text())}</mo>", "rel")
        if name in ACCENTS:
            return _accented(self.argument(), ACCENTS[name])
        if name == "underbrace":
            # A line, not a brace: a brace stretches only where there is a mathematical font.
            return Atom(f'<mrow class="labelled">{self.argument()}</mrow>', "ord", limits=True)
        if name in ("underset", "overset"):
            mark, base = self.argument(), self.argument()
            tag = "munder" if name == "underset" else "mover"
            return Atom(f"<{tag}>{base}{mark}</{tag}>", "rel")
        if name in BIG:
            return self.sized(BIG[name])
        if name == "left":
            return self.stretched()
        if name == "begin":
            return self.environment(self.braced_text())
        raise MathError(f"Unknown command \\{name} in {self.text!r}")

    def delimiter(self) -> str:
        token = self.take()
        name = token.removeprefix("\\")
        table = OPENING | CLOSING | BARS
        if token.startswith("\\"):
            if name not in table:
                raise MathError(f"{token} is no delimiter in {self.text!r}")
            return table[name]
        return "" if token == "." else token

    def sized(self, size: float) -> Atom:
        mark = self.delimiter()
        kind = "open" if mark in "([{⟨" else "close"
        markup = (
            f'<mo stretchy="true" symmetric="true" minsize="{size}em" maxsize="{size}em" '
            f'lspace="0" rspace="0">{escape(mark)}</mo>'
        )
        return Atom(markup, kind)

    def stretched(self) -> Atom:
        opening = self.delimiter()
        row = self.row(("\\right",))
        self.expect("\\right")
        closing = self.delimiter()
        return Atom(_between(opening, row, closing), "ord")

    def environment(self, name: str) -> Atom:
        name = name.rstrip("*")
        rows = [[self.row(("&", "\\\\", "\\end"))]]
        while (token := self.take()) != "\\end":
            if token == "&":
                rows[-1].append(self.row(("&", "\\\\", "\\end")))
            else:
                rows.append([self.row(("&", "\\\\", "\\end"))])
        if self.braced_text().rstrip("*") != name:
            raise MathError(f"\\begin{{{name}}} is closed by another name in {self.text!r}")
        if rows[-1] == ["<mrow></mrow>"]:
            rows.pop()
        if name in ("aligned", "align", "split", "gathered"):
            return Atom(_table(rows, "aligned"), "ord")
        if name == "pmatrix":
            return Atom(_between("(", _table(rows, "matrix"), ")"), "ord")
        if name == "cases":
            return Atom(_between("{", _table(rows, "cases"), ""), "ord")
        raise MathError(f"Unknown environment {name!r} in {self.text!r}")


# --- pieces of MathML -----------------------------------------------------------------------------


def _fence(mark: str) -> str:
    return f'<mo stretchy="false" lspace="0" rspace="0">{escape(mark)}</mo>'


def _between(opening: str, row: str, closing: str) -> str:
    def side(mark: str) -> str:
        return f'<mo stretchy="true" fence="true" lspace="0" rspace="0">{escape(mark)}</mo>'

    left, right = (side(mark) if mark else "" for mark in (opening, closing))
    return f"<mrow>{left}{row}{right}</mrow>"


def _sign(mark: str, before: str) -> Atom:
    """A sign is binary after something, and a prefix elsewhere."""
    if before in ("ord", "close"):
        return Atom(f"<mo>{mark}</mo>", "bin")
    return Atom(f'<mo form="prefix" lspace="0" rspace="0">{mark}</mo>', "open")


def _binary(mark: str, before: str) -> Atom:
    if before not in ("ord", "close") or mark == "/":
        return Atom(f'<mo lspace="0" rspace="0">{mark}</mo>', "bin" if mark == "/" else "ord")
    return Atom(f'<mo lspace="0.2em" rspace="0.2em">{mark}</mo>', "bin")


def _small_fraction(top: str, bottom: str) -> str:
    return f'<mstyle displaystyle="false"><mfrac>{top}{bottom}</mfrac></mstyle>'


def _accented(base: str, mark: str) -> Atom:
    return Atom(f'<mover accent="true">{base}<mo stretchy="false">{mark}</mo></mover>', "ord")


def _kept_spaces(text: str) -> str:
    return escape(text).replace(" ", "\u00a0")


def _table(rows: list[list[str]], kind: str) -> str:
    lines = ("".join(f"<mtd>{cell}</mtd>" for cell in row) for row in rows)
    style = ' displaystyle="true"' if kind == "aligned" else ""
    return (
        f'<mtable class="{kind}"{style}>{"".join(f"<mtr>{line}</mtr>" for line in lines)}</mtable>'
    )


# --- Sphinx ---------------------------------------------------------------------------------------


def _render(self: Any, node: Any, *, block: bool) -> str:
    from sphinx.util import logging

    try:
        return to_mathml(node.astext(), block=block)
    except MathError as error:
        logging.getLogger(__name__).warning(str(error), location=node)  # fails the build
        return f"<code>{escape(node.astext())}</code>"


def _inline(self: Any, node: Any) -> None:
    from docutils import nodes

    self.body.append(_render(self, node, block=False))
    raise nodes.SkipNode


def _display(self: Any, node: Any) -> None:
    from docutils import nodes

    self.body.append(f'<div class="formula">{_render(self, node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
