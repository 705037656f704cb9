"""Every public name has a sentence, an equation, a reference and an example that runs."""

import doctest
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
import torch

import legato
import legato as lg

API = Path(__file__).parents[2] / "docs" / "api"

# Modules whose docstrings hold their examples, and those whose page does.
IN_DOCSTRINGS = [
    "legato",
    "legato.functions",
    "legato.geometry",
    "legato.operators",
    "legato.algorithms",
    "legato.gradients",
    "legato.diagnostics",
    "legato.optim",
    "legato.bilevel",
]
# Records, files and switches, which have no equation of their own.
NO_EQUATION = {
    "Checkpoint", "Diagnosis", "Finding", "Fit", "History", "Recommendation", "Record",
    "Reference", "Run", "Sign", "peak_bytes",
}  # fmt: skip
# Options of a method and parts of a result: the examples of what they belong to show them.
NO_EXAMPLE = {
    "FletcherReeves", "HagerZhang", "History", "LipschitzSearch", "PolakRibiere", "Record",
    "StrongWolfe",
}  # fmt: skip
ON_PAGES = {
    "legato.nn": "nn.rst",
    "legato.sklearn": "sklearn.rst",
    "legato.studies.toy.example": "studies.rst",
    "legato.studies.toy.methods": "studies.rst",
    "legato.studies.toy.study": "studies.rst",
    "legato.studies.segment.data": "studies.rst",
}


def find_module(name):
    importlib.import_module(name)
    return sys.modules[name]  # not the function legato.diagnose, which hides its module


def public(module):
    return [(module, name) for name in find_module(module).__all__]


# Each once, under the first module that offers it.
FIRST = {
    id(getattr(find_module(module), name)): (module, name)
    for listed in reversed(IN_DOCSTRINGS)
    for module, name in public(listed)
}
NAMES = sorted(FIRST.values())


@pytest.fixture
def world():
    """What the examples suppose: torch, legato, and for diagnose the diagnosis of its own entry."""
    torch.manual_seed(0)
    return {"torch": torch, "legato": legato, "lg": lg, "__name__": "__main__"}


@pytest.fixture(scope="module")
def diagnosis():
    weight = torch.tensor(0.5, requires_grad=True)
    problem = lg.Composite(lg.LeastSquares(torch.eye(3), torch.ones(3)), lg.L1(weight))
    return lg.diagnose(problem, lg.ForwardBackward(0.5), lambda x: x.square().sum())


def run_examples(test):
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append)
    assert test.examples
    assert not runner.failures, "".join(said)


def has_equation(text):
    """Set apart, or in a sentence; what is code does not count."""
    words = re.sub(r"``[^`]*``", "", text.split(">>>")[0])
    return ".. math::" in words or bool(re.search(r"[=≤≥≈∼∈↦⟨‖]", words))


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda part: part)
def test_docstring(module, name, world, diagnosis):
    thing = inspect.unwrap(getattr(find_module(module), name))
    text = inspect.getdoc(thing)
    assert text
    sentence = re.split(r"\n\s*\n", text)[0].replace("\n", " ")
    assert sentence.rstrip().endswith((".", "?")), "the first paragraph is a sentence"
    records = name in NO_EQUATION  # which come from no paper
    assert records or "Reference:" in text, "where does it come from?"
    assert has_equation(text) != (name in NO_EQUATION)
    test = doctest.DocTestParser().get_doctest(
        text, world | {"diagnosis": diagnosis}, name, None, 0
    )
    if name not in NO_EXAMPLE:
        run_examples(test)


WITH_EXAMPLES = [
    (module, name)
    for listed in ON_PAGES
    for module, name in public(listed)
    if ">>>" in (getattr(find_module(module), name).__doc__ or "")
]


@pytest.mark.parametrize(("module", "name"), WITH_EXAMPLES, ids=lambda part: part)
def test_docstring_of_a_layer(module, name, world):
    here = {other: getattr(find_module(module), other) for _, other in public(module)}
    text = inspect.getdoc(getattr(find_module(module), name))
    run_examples(doctest.DocTestParser().get_doctest(text, world | here, name, None, 0))


@pytest.mark.parametrize(
    ("module", "name"), public("legato.nn") + public("legato.sklearn"), ids=lambda part: part
)
def test_a_layer_says_where_it_comes_from(module, name):
    assert "Reference:" in inspect.getdoc(getattr(find_module(module), name))


@pytest.mark.parametrize("page", ["nn.rst", "sklearn.rst", "studies.rst", "errors.rst"])
def test_page(page, world):
    text = (API / page).read_text(encoding="utf-8")
    run_examples(doctest.DocTestParser().get_doctest(text, world, page, None, 0))


@pytest.mark.parametrize("module", ON_PAGES)
def test_examples_name_everything(module):
    """Each public name is used in an example, on its page or in its docstring."""
    text = (API / ON_PAGES[module]).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^(?:>>>|\.\.\.) (.*)$", text, flags=re.MULTILINE))
    missing = [
        name
        for _, name in public(module)
        if not re.search(rf"\b{name}\b", code)
        and ">>>" not in (getattr(getattr(find_module(module), name), "__doc__", "") or "")
    ]
    assert not missing, f"without an example in {ON_PAGES[module]}: {', '.join(missing)}"


@pytest.mark.parametrize("module", [*IN_DOCSTRINGS, *ON_PAGES])
def test_every_name_has_its_entry(module, site):
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    missing = [
        name
        for _, name in public(module)
        if not re.search(rf'id="(?:legato|{re.escape(module)})\.{name}"', pages)
        and not re.search(rf'id="legato\.[\w.]+\.{name}"', pages)
    ]
    assert not missing
