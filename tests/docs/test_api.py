"""What a docstring owes its reader.

Every public name says in a sentence what it is. A function, and a class that computes, shows an
example that runs, in its docstring or on its page; more than three parameters are listed under
``Args:``. Errors, records and base classes owe no example.
"""

import doctest
import inspect
import re
from importlib import import_module

import pytest
import torch

import legato
import legato as lg
from documented import API, PAGES
from legato.gradients import LinearSolver

CONTRACTS = (
    lg.Algorithm,
    lg.Function,
    lg.Geometry,
    lg.GradientStrategy,
    lg.Operator,
    LinearSolver,
    torch.nn.Module,
    torch.optim.Optimizer,
)


def public(module):
    """``__all__`` or, where there is none, what the module defines."""
    found = import_module(module)
    return getattr(found, "__all__", None) or [
        name
        for name, thing in vars(found).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module
    ]


# A name is looked at once, under the first module that offers it.
FIRST = {
    id(getattr(import_module(module), name)): (module, name)
    for module in reversed(PAGES)
    for name in public(module)
}
NAMES = [
    pair for pair in sorted(FIRST.values()) if callable(getattr(import_module(pair[0]), pair[1]))
]


def look_up(module, name):
    return inspect.unwrap(getattr(import_module(module), name))


def computes(thing):
    """A function, or a class that fills a contract and is not one itself; studies only use them."""
    if thing.__module__.startswith("legato.studies."):
        return False
    if not inspect.isclass(thing):
        return True
    contract = thing in CONTRACTS or inspect.isabstract(thing)
    return issubclass(thing, CONTRACTS) and not contract


COMPUTING = [pair for pair in NAMES if computes(look_up(*pair))]
MANY_PARAMETERS = [
    (module, name)
    for module, name in NAMES
    if (computes(look_up(module, name)) or hasattr(look_up(module, name), "fit"))
    and len(inspect.signature(look_up(module, name)).parameters) > 3
]


def examples_of(page):
    """The lines of code in the examples of a page."""
    text = (API / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^(?:>>>|\.\.\.) (.*)$", text, flags=re.MULTILINE))


@pytest.fixture
def world():
    """What examples suppose: torch, legato, and the names of the module they stand in."""
    torch.manual_seed(0)
    return {"torch": torch, "legato": legato, "lg": lg, "__name__": "__main__"}


@pytest.fixture(scope="module")
def diagnosis():
    """For the parts of a diagnosis: that of the example of ``diagnose``."""

    def make(dtype):
        weight = torch.tensor(0.5, dtype=dtype, requires_grad=True)
        data = lg.LeastSquares(torch.eye(3, dtype=dtype), torch.ones(3, dtype=dtype))
        problem = lg.Composite(data, lg.L1(weight))
        return problem, lg.ForwardBackward(0.5), lambda x: x.square().sum()

    return lg.diagnose(make)


def run_examples(text, names, where):
    test = doctest.DocTestParser().get_doctest(text, names, where, None, 0)
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append)
    assert test.examples
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda part: part)
def test_summary(module, name):
    text = look_up(module, name).__doc__
    assert text
    paragraph = re.split(r"\n\s*\n", inspect.cleandoc(text))[0]
    assert paragraph.rstrip().endswith((".", "?")), "the first paragraph is a sentence"


@pytest.mark.parametrize(
    ("module", "name"),
    [pair for pair in NAMES if ">>>" in (look_up(*pair).__doc__ or "")],
    ids=lambda part: part,
)
def test_examples_run(module, name, world, diagnosis):
    names = {other: getattr(import_module(module), other) for other in public(module)}
    text = inspect.getdoc(look_up(module, name))
    run_examples(text, names | world | {"diagnosis": diagnosis}, name)


@pytest.mark.parametrize(("module", "name"), COMPUTING, ids=lambda part: part)
def test_what_computes_has_an_example(module, name):
    shown = ">>>" in (look_up(module, name).__doc__ or "")
    assert shown or re.search(rf"\b{name}\b", examples_of(PAGES[module]))


@pytest.mark.parametrize(("module", "name"), MANY_PARAMETERS, ids=lambda part: part)
def test_many_parameters_are_listed(module, name):
    thing = look_up(module, name)
    text = inspect.cleandoc(thing.__doc__)
    if "Parameters\n----------" in text:  # scikit-learn's form, in legato.sklearn
        section = re.search(r"^Parameters\n-{10}\n((?:.+\n)+)", text, flags=re.MULTILINE)
        assert not set(inspect.signature(thing).parameters) - {
            *re.findall(r"^(\w+) : ", section[1], flags=re.MULTILINE)
        }
        return
    section = re.search(r"^Args:\n((?:\s{4,}.*\n?|\n(?=\s{4}))+)", text, flags=re.MULTILINE)
    assert section, "Args: is missing"
    if ":class:`" in section[1]:
        return  # the other parameters are those of another class, which lists them
    listed = {
        listed.strip()
        for head in re.findall(r"^ {4}(\w[\w, ]*)(?: \(.*?\))?:", section[1], flags=re.MULTILINE)
        for listed in head.split(",")
    }
    assert not set(inspect.signature(thing).parameters) - listed


@pytest.mark.parametrize(
    "page", sorted({p.name for p in API.glob("*.rst") if ">>>" in p.read_text("utf-8")})
)
def test_page(page, world):
    run_examples((API / page).read_text(encoding="utf-8"), world, page)


@pytest.mark.parametrize("module", PAGES)
def test_every_name_has_its_entry(module, site):
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    missing = [
        name
        for name in public(module)
        if not re.search(rf'id="(?:legato|{re.escape(module)})\.{name}"', pages)
        and not re.search(rf'id="legato\.[\w.]+\.{name}"', pages)
    ]
    assert not missing


LAYERS = [
    name
    for name in public("legato.nn")
    if inspect.isclass(getattr(legato.nn, name))
    and issubclass(getattr(legato.nn, name), torch.nn.Module)
]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_tells_types_shapes_and_what_it_returns(name, site):
    """In its docstring, for ``help``, and on its page, where ``forward`` is listed too."""
    layer = getattr(legato.nn, name)
    text = inspect.getdoc(layer)
    assert ">>>" in text
    if name != "SoftmaxLoss":  # its arguments and shapes are those of torch's NLLLoss
        arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
        listed = re.findall(r"^ {4}(\w+)(.*?):", arguments, flags=re.MULTILINE)
        assert {found for found, _ in listed} == {*inspect.signature(layer).parameters}
        assert not [found for found, kind in listed if "(" not in kind], "without a type"
        assert "Shape:" in text or "shape stays" in text
    assert layer.forward.__doc__
    page = (site / "api" / "nn.html").read_text(encoding="utf-8")
    assert f'id="legato.nn.{name}.forward"' in page


@pytest.mark.parametrize(
    "name", [n for n in public("legato.sklearn") if hasattr(look_up("legato.sklearn", n), "fit")]
)
def test_an_estimator_has_an_example_of_its_own(name):
    assert ">>>" in look_up("legato.sklearn", name).__doc__
