"""One pass of every metamorphic law over one subject of every kind; stress repeats it at length."""

import pytest
from metamorphic.chunks import LAWS
from metamorphic.judge import Judge
from metamorphic.outcome import Case
from metamorphic.places import FAMILIES, any_place
from metamorphic.processes import forked, in_threads
from metamorphic.subjects import EXCEPTIONS, by_name, covered, public_names
from tally import Tally

SUBJECTS = (
    ("layer", "Potts, steps, numba"),
    ("layer", "TotalVariation, weight per pixel, numba"),
    ("layer", "AnalysisDenoiser, plain"),
    ("layer", "NonNegativeLeastSquares"),
    ("solve", "lasso, chosen, Unroll"),
    ("solve", "box, chosen, GMRES"),
    ("solve", "equality, chosen, Unroll"),
    ("value", "Logistic"),
    ("grad", "LeastSquares"),
    ("prox", "Simplex"),
    ("mirror prox", "L1, Interval"),
    ("operator", "Convolution, mirror"),
    ("norm", "Differences"),
    ("geometry", "Entropy"),
    ("optimiser", "IPiano, SearchedStep"),
)


def test_every_public_name_has_a_subject():
    assert public_names() - covered() - EXCEPTIONS == set()


def test_exceptions_are_public_and_untried():
    assert public_names() >= EXCEPTIONS - {"Diagnosis", "diagnose"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name"), SUBJECTS, ids=[f"{k}: {n}" for k, n in SUBJECTS])
def test_laws(kind, name):
    tally = Tally()
    case, judge = Case(by_name(kind, name), 0), Judge(tally)
    assert judge.works(case)
    for law in LAWS:
        law(case, judge)
    assert tally.counts["checks"] > 20
    found = {k: v[0] for k, v in tally.findings.items()}
    assert not found, found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["lasso", "tv"])
def test_theta_in_any_place(name):
    assert name in FAMILIES
    tally = Tally()
    any_place(name, 0, Judge(tally))
    assert tally.counts["checks"] == len(FAMILIES[name].ways)
    tally.require_none()


@pytest.mark.filterwarnings("ignore")
def test_threads_and_forks():
    tally = Tally()
    cases = [Case(by_name(kind, name), 1) for kind, name in SUBJECTS[::2]]
    in_threads(cases, Judge(tally))
    forked(cases, Judge(tally))
    tally.require_none()


@pytest.mark.parametrize("law", ["values", "slopes"])
def test_a_difference_is_found(law):
    """The laws can fail: a subject that counts its calls breaks them."""
    import dataclasses

    import torch

    calls = [0]

    def run(built, t):
        calls[0] += 1
        if law == "values":
            return t["x"] * (1 + 1e-12 * calls[0])
        return t["x"].detach() + 0 * t["x"] if calls[0] > 1 else 1.0 * t["x"]

    subject = dataclasses.replace(
        by_name("value", "L1"),
        name="counts its calls",
        draw=lambda n: {"x": n.normal(3)},
        build=lambda t: torch.nn.Identity(),
        run=run,
    )
    tally = Tally()
    case = Case(subject, 0)
    case.expected  # noqa: B018
    LAWS[0](case, Judge(tally))
    assert tally.findings["broken: twice"]
