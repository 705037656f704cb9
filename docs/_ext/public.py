"""``{public} MODULE``: every public name of a module, a table first and then entry by entry.

A name that ``import legato as lg`` offers too is documented as ``legato.NAME``, where users look.
The list is the module's ``__all__``, so that a page can never lag behind the code.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from sphinx.ext.napoleon import Config, GoogleDocstring, NumpyDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.nodes import make_refnode

import legato

# Contracts that users subclass, and results whose methods they call: shown with their members.
OPEN = {
    "Algorithm", "Backward", "Diagnosis", "Fit", "Function", "Geometry", "GradientStrategy",
    "HeavyBall", "History", "InnerSolver", "LinearSolver", "Operator", "Saddle", "Composite",
    "PottsOutput", "TotalVariationOutput", "AnalysisDenoiserOutput", "DescentOptimizer",
    "FixedPointGradient", "Linearisation", "LeastSquaresOutput", "MatrixGameOutput",
    "SparseCodingOutput", "OuterPath", "Task", "LayerReport", "ProgramOutput",
}  # fmt: skip


def home(module: str, name: str) -> str:
    """The module under which a name is documented."""
    thing = getattr(import_module(module), name)
    return "legato" if getattr(legato, name, None) is thing else module


def entry(module: str, name: str) -> list[str]:
    thing = getattr(import_module(module), name)
    if inspect.isclass(thing):
        lines = [f".. autoclass:: {name}"]
        if name in OPEN:
            lines += ["   :members:"]
        elif hasattr(thing, "forward"):  # a layer
            lines += layer_members(thing)
    elif callable(thing):
        lines = [f".. autofunction:: {name}"]
    else:
        lines = [f".. py:data:: {name}", "", f"   {comment(module, name)}"]
    return [f".. currentmodule:: {home(module, name)}", "", *lines, ""]


def layer_members(layer: type) -> list[str]:
    """What one calls and reads: forward, the full record of solve, and what is the layer's own."""
    own = [
        name
        for name, thing in vars(layer).items()
        if not name.startswith("_") and getattr(thing, "__doc__", None) and name != "extra_repr"
    ]
    calls = [name for name in ("forward", "solve") if hasattr(layer, name)]
    listed = [*calls, *(name for name in own if name not in calls)]
    lines = [f"   :members: {', '.join(name for name in listed if name in own)}", ""]
    return lines + [f"   .. automethod:: {name}" for name in calls if name not in own]


def comment(module: str, name: str) -> str:
    """What stands beside a constant in the source, in a string below it or a comment behind it."""
    for place, code in _sources(module):
        analyzer = ModuleAnalyzer.for_string(code, place)
        found = analyzer.find_attr_docs().get(("", name))
        if found:
            return " ".join(line for line in found if line)
        line = re.search(rf"^{name}\b.*?#\s*(.+)$", code, re.MULTILINE)
        if line:
            return line.group(1)
    return f"A {type(getattr(import_module(module), name)).__name__}."


def _sources(module: str) -> list[tuple[str, str]]:
    folder = Path(import_module(module).__file__ or "").parent
    return [(f.stem, f.read_text(encoding="utf-8")) for f in sorted(folder.glob("*.py"))]


class Public(Directive):
    """The public names of a module, or those given by ``:names:``."""

    required_arguments = 1
    option_spec = {"names": directives.unchanged}  # noqa: RUF012 (docutils asks for a plain dict)

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        names = self.options.get("names", "").split() or import_module(module).__all__
        names = sorted(names, key=str.lower)
        lines = [".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   ~{home(module, name)}.{name}" for name in names]
        lines += [""]
        for name in names:
            lines += entry(module, name)
        content = StringList(lines, source=f"public {module}")
        node = nodes.container()
        self.state.nested_parse(content, self.content_offset, node)
        return node.children


def resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Find the one entry meant where a docstring calls a name as users do, such as ``fit``."""
    if node.get("refdomain") != "py":
        return None
    wanted = node["reftarget"].removeprefix("legato.")
    objects = env.domains["py"].objects
    found = [name for name in objects if name.endswith(f".{wanted}")]
    found = [name for name in found if name.startswith("legato.")]
    if not found:
        return None
    best = min(found, key=len)  # legato.fit rather than a method of that name
    return make_refnode(
        app.builder, node["refdoc"], objects[best].docname, objects[best].node_id, content, best
    )


# --- docstrings as they are written ---------------------------------------------------------------

# Types in lists of arguments are words for readers, not names to link to.
SECTIONS = Config(
    napoleon_custom_sections=["Shape", ("Attributes", "params_style")],
    napoleon_use_param=False,
    napoleon_use_rtype=False,
)

# What reStructuredText must see as it is: literals, roles, emphasis over whole words.
KEPT = re.compile(
    r"``.+?``|:[\w:]+:`[^`]+`|(?<![\w*])\*(?=[^\s*])[^*]+?(?<=[^\s*])\*(?![\w*])", re.DOTALL
)


def escape(text: str) -> str:
    """Mathematics in running text, |x| or (B, *spatial), is not markup."""
    done, place = [], 0
    for found in KEPT.finditer(text):
        done += [_escape_plain(text[place : found.start()]), found.group()]
        place = found.end()
    return "".join([*done, _escape_plain(text[place:])])


def _escape_plain(text: str) -> str:
    text = re.sub(r"([|*])", r"\\\1", text)
    text = re.sub(r"(\w)_(?![\w:])", r"\1\\_", text)  # coef_ is no reference
    # A_x and x_G, as one writes in plain text, have small letters on a page.
    return re.sub(r"(?<![\w`.])([^\W\d_])_([^\W_])(?![A-Za-z0-9_])", r"\1\\ :sub:`\2`\\ ", text)


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape text, but not mathematics and examples; turn ``Args:`` and its kin into lists."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    done: list[str] = []
    for paragraph in paragraphs:
        first = paragraph[0].lstrip() if paragraph else ""
        if first.startswith(("..", ">>>")) or (done and paragraph and paragraph[0][:1] == " "):
            done += [*paragraph, ""]  # a directive, what belongs to it, or an example
        else:
            done += [*escape("\n".join(paragraph)).split("\n"), ""]
    text = "\n".join(done)
    # legato.sklearn writes its lists as scikit-learn does.
    form = NumpyDocstring if "\nParameters\n-----" in text else GoogleDocstring
    lines[:] = str(form(text, SECTIONS)).split("\n")


def setup(app: Any) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.add_directive("public", Public)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
