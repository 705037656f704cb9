"""Mutants: a module's source with one small thing broken, drawn line by line."""

from __future__ import annotations

import ast
import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

PACKAGES = ("functions", "operators", "geometry", "algorithms", "gradients", "nn", "optim",
            "bilevel", "sklearn", "testing", "diagnostics")  # fmt: skip
MODULES = ("energy.py", "running.py", "problems.py", "solving.py")
NOT_NUMERICAL = ("bilevel/checkpoint.py", "bilevel/history.py", "diagnostics/report.py",
                 "testing/report.py", "testing/problems.py", "sklearn/base.py")  # fmt: skip
TALKING = ("__repr__", "_advice", "describe", "_describe", "summary", "__str__")
"""Functions that make text."""

SWAPS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
}
FLIPS = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
         ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot,
         ast.IsNot: ast.Is}  # fmt: skip
RENAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "amin": "amax",
           "amax": "amin", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin",
           "mean": "sum", "cos": "sin", "exp": "expm1", "sinh": "cosh"}  # fmt: skip
DROPPED = ("sum", "detach", "abs", "sqrt", "mean", "neg", "clone", "conj", "flip", "sigmoid")


@dataclass(frozen=True)
class Mutant:
    """One replacement of the bytes [start, end) of a module."""

    module: str
    line: int
    function: str
    what: str
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.line} {self.what} @{self.start}"

    @property
    def place(self) -> tuple[str, int, int, str]:
        """What tells it from all other mutants of the same source."""
        return self.module, self.start, self.end, self.text

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def modules(src: Path) -> list[str]:
    """Every numerical module below src, as paths relative to it."""
    root = src / "legato"
    found = [root / name for name in MODULES]
    for package in PACKAGES:
        found += sorted((root / package).rglob("*.py"))
    names = [
        str(path.relative_to(src))
        for path in found
        if path.name != "__init__.py" and "import triton" not in path.read_text()
    ]
    return [name for name in names if name.removeprefix("legato/") not in NOT_NUMERICAL]


def draw(src: Path, count: int, seed: int) -> list[Mutant]:
    """``count`` mutants on as many lines, every line as likely as any other.

    A line has its lot by its text, so that a change elsewhere leaves it in the sample or out of it.
    """
    lots: dict[str, list[Mutant]] = {}
    for module in modules(src):
        source = (src / module).read_bytes()
        lines: dict[int, list[Mutant]] = defaultdict(list)
        for mutant in mutants(module, source):
            lines[mutant.line].append(mutant)
        texts, seen = source.splitlines(), Counter[bytes]()
        for number in sorted(lines):
            text = texts[number - 1].strip()
            seen[text] += 1
            lot = f"{seed} {module} {seen[text]} ".encode() + text
            lots[hashlib.sha256(lot).hexdigest()] = lines[number]
    drawn = (_one_of(lots[lot], random.Random(lot)) for lot in sorted(lots))
    sound = (m for m in drawn if _is_program(m, (src / m.module).read_bytes()))
    return list(islice(sound, count))


def _one_of(choice: list[Mutant], dice: random.Random) -> Mutant:
    """A subtle one in four of five cases, where the line has any: what deletes is found easily."""
    subtle = [m for m in choice if m.what not in ("statement deleted", "returns None")]
    return dice.choice(subtle if subtle and dice.random() < 0.8 else choice)


def mutants(module: str, source: bytes) -> Iterator[Mutant]:
    """All mutants of one module."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, function, text, what in _places(ast.parse(source), "<module>"):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        yield Mutant(module, node.lineno, function, what, start, end, text)


def _is_program(mutant: Mutant, source: bytes) -> bool:
    """Whether a mutant compiles and differs from the module."""
    try:
        changed = ast.parse(mutant.apply(source))
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))


Place = tuple[Any, str, str, str]


def _places(node: ast.AST, function: str) -> Iterator[Place]:
    """Nodes with what replaces them, without annotations, docstrings, text and error messages."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if node.name in TALKING:
            return
        function = node.name if function == "<module>" else f"{function}.{node.name}"
        inner: list[ast.AST] = [
            *node.args.defaults,
            *filter(None, node.args.kw_defaults),
            *node.body,
        ]
    elif isinstance(node, ast.ClassDef):
        function = node.name if function == "<module>" else f"{function}.{node.name}"
        inner = list(node.body)
    elif isinstance(node, ast.AnnAssign):
        inner = [node.value] if node.value is not None else []
    elif _is_talk(node):
        return
    else:
        inner = list(ast.iter_child_nodes(node))
    for text, what in _replacements(node):
        yield node, function, text, what
    for child in inner:
        yield from _places(child, function)


def _is_talk(node: ast.AST) -> bool:
    """Whether a node is an error's or warning's text, a docstring, an import or an assertion."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Assert):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func).endswith("warn")
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id.startswith("__") for t in node.targets)
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Error", "Warning"))


def _replacements(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        if not any(
            isinstance(s, ast.Constant) and isinstance(s.value, str)
            for s in (node.left, node.right)
        ):
            new = SWAPS[type(node.op)]
            yield (
                _text(ast.BinOp(node.left, new(), node.right)),
                f"{_sign(node.op)} → {_sign(new())}",
            )
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        new_op = FLIPS[type(node.ops[0])]()
        yield _text(ast.Compare(node.left, [new_op], node.comparators)), "comparison flipped"
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        yield _text(node.operand), f"{_sign(node.op)} dropped"
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _text(ast.BoolOp(other, node.values)), "and ↔ or"
    elif isinstance(node, ast.IfExp):
        yield _text(ast.IfExp(node.test, node.orelse, node.body)), "branches swapped"
    elif isinstance(node, ast.Call):
        yield from _other_calls(node)
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "pass", "statement deleted"
    elif isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield "return None", "returns None"
    elif isinstance(node, ast.Break | ast.Continue):
        yield "pass", "statement deleted"


def _other_constants(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool):
        yield str(not value), f"{value} → {not value}"
    elif isinstance(value, int):
        yield str(value + 1), f"{value} → {value + 1}"
    elif isinstance(value, float):
        other = 2 * value if value else 1.0
        yield repr(other), f"{value} → {other}"


def _other_calls(node: ast.Call) -> Iterator[tuple[str, str]]:
    if isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name in DROPPED and not (
            isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "np", "math")
        ):
            yield _text(node.func.value), f".{name} dropped"
        if name in RENAMES:
            func = ast.Attribute(node.func.value, RENAMES[name], ast.Load())
            yield _text(ast.Call(func, node.args, node.keywords)), f"{name} → {RENAMES[name]}"
    elif isinstance(node.func, ast.Name) and node.func.id in RENAMES:
        other = RENAMES[node.func.id]
        yield (
            _text(ast.Call(ast.Name(other), node.args, node.keywords)),
            f"{node.func.id} → {other}",
        )


def _text(node: ast.AST) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def _sign(op: ast.AST) -> str:
    return {ast.Add: "+", ast.Sub: "−", ast.Mult: "×", ast.Div: "/", ast.Pow: "**",
            ast.USub: "minus", ast.Not: "not", ast.Invert: "~"}[type(op)]  # fmt: skip
