"""Problems of which it is known which gradient is right, what is wrong, and why."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import legato as lg
from legato.diagnostics import Diagnosis, Symptom, measure
from legato.diagnostics.reference import follow
from legato.diagnostics.setting import Setting
from legato.diagnostics.uniqueness import compare_starts
from problems import A, by_name, random

INEXACT, LOST = "InexactGradientWarning", "NonContractiveWarning"
EARLY = "NotConvergedWarning"


@dataclass(frozen=True)
class Case:
    """A problem and its answers: the recommendation, the signs, and which rows warn of what."""

    build: Callable[[], tuple[Any, lg.Algorithm, Callable[[Any], Tensor], Any]]
    recommended: str | None
    reason: str
    signs: frozenset[Symptom] = frozenset()
    says: dict[str, str] = field(default_factory=dict)
    stop: lg.Stop = field(default_factory=lambda: lg.Stop(120))
    reference: int = 800


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def slope(x: Tensor) -> Tensor:
    """A loss that sees every entry differently."""
    return by_name("lasso").loss(x)


def of(name: str) -> Callable[[], tuple[Any, lg.Algorithm, Callable[[Any], Tensor], Any]]:
    def build() -> tuple[Any, lg.Algorithm, Callable[[Any], Tensor], Any]:
        p = by_name(name)
        problem, algorithm, x0 = p.build(*p.leaves())
        return problem, algorithm, p.loss, x0

    return build


# --- healthy --------------------------------------------------------------------------------------


def denoising():
    """½‖x − b‖² + w‖x‖₁ with step 1: one step solves it, A_x = 0."""
    data = lg.LeastSquares(lg.Identity(), vector(1.0, -2.0, 0.1))
    return lg.Composite(data, lg.L1(number(0.3))), lg.ForwardBackward(1.0), slope, None


def ridge():
    """Differences descent on a quadratic: A_x = I − αH is symmetric."""
    Q = torch.diag(torch.linspace(0.1, 1.0, 12, dtype=torch.float64))
    smooth = lg.Quadratic(Q, random(3, 12).requires_grad_())
    return lg.Composite(smooth), lg.ForwardBackward(1.0), slope, None


def ill_conditioned_lasso():
    """Condition number 40: ρ = 0.975, and a hundred terms are too few."""
    left, _, right = torch.linalg.svd(random(8, 20, 12), full_matrices=False)
    matrix = left @ torch.diag(torch.logspace(0, -0.8, 12, dtype=torch.float64)) @ right
    target = matrix @ torch.tensor([3.0, -2, 0, 1, 0, 4, 0, 0, -3, 0, 2, 0], dtype=torch.float64)
    problem = lg.Composite(lg.LeastSquares(matrix, target), lg.L1(number(1e-3)))
    return problem, lg.ForwardBackward(inertia=0.0), slope, None


def toy(theta: float):
    """Set A of the paper's toy, x ≥ 0 and entropic steps: x* = max(θ, 0)/(1 + θ²)."""
    t = number(theta)

    def energy(x: Tensor) -> Tensor:
        return 0.5 * (t * x - 1) ** 2 + 0.5 * x**2

    problem = lg.Composite(lg.Smooth(energy), lg.NonNegative())
    algorithm = lg.ForwardBackward(1.4, lg.Entropy())
    return problem, algorithm, lambda x: 0.5 * (x - 0.5).square().sum(), vector(1.0)


# --- in trouble -----------------------------------------------------------------------------------


def slow_tv():
    """TV over 24 samples with a strong weight: the dual crosses it in hundreds of iterations."""
    signal = torch.cat([torch.zeros(12), torch.ones(12)]).double() + 0.1 * random(4, 24)
    data = lg.SquaredDistance(signal)
    problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(number(2.0)), nonsmooth=data)
    return problem, lg.PrimalDual(), slope, torch.zeros(24, dtype=torch.float64)


def linear_program():
    """min ⟨c, x⟩ on the simplex, c = (t, t, t + 1): any mixture of the first two solves it."""
    c = vector(0.2, 0.2, 1.2).requires_grad_()
    problem = lg.Composite(lg.Linear(c), lg.Simplex())
    return problem, lg.ForwardBackward(0.1), slope, vector(0.5, 0.3, 0.2)


def equal_columns():
    """Least squares with two equal columns: only their sum is determined, and smoothly."""
    matrix = vector(1.0, 1.0)[None]
    problem = lg.Composite(lg.LeastSquares(matrix, number(0.7).reshape(1)))
    return problem, lg.ForwardBackward(0.4), lambda x: slope(x), vector(0.0, 0.0)


def without_complementarity():
    """NNLS with A = I and a target of 0 in one entry: x₁ = 0 and ∂₁f = 0 at once."""
    b = vector(0.8, 0.0).requires_grad_()
    problem = lg.Composite(lg.LeastSquares(torch.eye(2).double(), b), lg.NonNegative())
    return problem, lg.ForwardBackward(0.5, lg.Entropy()), slope, vector(0.5, 0.5)


def kink():
    """Soft thresholding exactly at its threshold."""
    data = lg.LeastSquares(lg.Identity(), vector(1.0, 0.25).requires_grad_())
    return lg.Composite(data, lg.L1(0.25)), lg.ForwardBackward(0.5), slope, None


class Descent(lg.Algorithm):
    """x⁺ = x − α(x − θ), with whatever α."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def init(self, problem, x0):
        return (x0,)

    def step(self, problem, state):
        return (state[0] - self.alpha * (state[0] - problem.theta),)

    def solution(self, state):
        return state[0]


@dataclass(frozen=True)
class Attractor:
    theta: Tensor


def unstable():
    """A step beyond 2/L, started at the fixed point: ρ = 1.5, and nothing seems to be wrong."""
    theta = vector(1.0, 2.0).requires_grad_()
    return Attractor(theta), Descent(2.5), slope, theta.detach().clone()


# --- answers --------------------------------------------------------------------------------------


def warn(category: str, *labels: str) -> dict[str, str]:
    return dict.fromkeys(labels, category)


ONE, TEN, HUNDRED = "OneStep()", "FixedPoint(terms=10)", "FixedPoint(terms=100)"
GMRES, CG, BICG = "Implicit(GMRES())", "Implicit(CG())", "Implicit(BiCGStab())"
DENSE = "Implicit(Direct())"
DEGENERATE = frozenset({Symptom.SUBLINEAR, Symptom.NO_STRICT_COMPLEMENTARITY})
CASES = {
    "denoising": Case(denoising, ONE, "after 1 backward product,"),
    "ridge": Case(
        ridge, GMRES, "after 12 backward products", says=warn(INEXACT, ONE, TEN, HUNDRED)
    ),
    "lasso": Case(of("lasso"), CG, "after 3 backward products", says=warn(INEXACT, ONE, TEN)),
    "ill-conditioned lasso": Case(
        ill_conditioned_lasso,
        CG,
        "backward products, where Unroll() takes",
        says=warn(INEXACT, ONE, TEN, HUNDRED),
        stop=lg.Stop(3000, tol=1e-10),
        reference=4000,
    ),
    "toy at θ = 0.3": Case(
        lambda: toy(0.3), GMRES, "after 1 backward product,", says=warn(INEXACT, ONE, TEN)
    ),
    "entropic boundary": Case(
        of("nnls entropic"), GMRES, "after 3 backward products", says=warn(INEXACT, ONE, TEN)
    ),
    "tv": Case(of("tv 1d"), GMRES, "after 12 backward products", says=warn(INEXACT, ONE, TEN)),
    "smooth potts": Case(
        of("smooth potts"),
        GMRES,
        "after 9 backward products",
        says=warn(INEXACT, ONE, TEN),
        stop=lg.Stop(80),
    ),
    "slow tv": Case(
        slow_tv,
        "Unroll()",
        "Run about 240 iterations, for a residual",
        frozenset({Symptom.NOT_CONVERGED}),
        warn(EARLY, GMRES, BICG, DENSE, "Piggyback()")
        | warn(f"{INEXACT}, {EARLY}", ONE, TEN, HUNDRED),
        stop=lg.Stop(40),
    ),
    "linear program": Case(
        linear_program,
        None,
        "not unique",
        frozenset({Symptom.NOT_UNIQUE}),
        warn(LOST, GMRES, CG, BICG, DENSE, TEN, HUNDRED) | warn(INEXACT, ONE),
    ),
    "equal columns": Case(
        equal_columns,
        "Unroll()",
        "the one that this start leads to",
        frozenset({Symptom.NOT_UNIQUE}),
        warn(LOST, GMRES, CG, BICG, DENSE, HUNDRED) | warn(INEXACT, ONE, TEN),
    ),
    "toy at θ = 0": Case(
        lambda: toy(0.0),
        "Unroll()",
        "generalised gradient: the iteration converges sublinearly",
        DEGENERATE,
        warn(EARLY, GMRES, CG, BICG, DENSE) | warn(f"{INEXACT}, {EARLY}", ONE, TEN, HUNDRED),
    ),
    "no strict complementarity": Case(
        without_complementarity,
        "Unroll()",
        "generalised gradient: the iteration converges sublinearly",
        DEGENERATE,
        warn(EARLY, GMRES, CG, BICG, DENSE) | warn(f"{INEXACT}, {EARLY}", ONE, TEN, HUNDRED),
    ),
    "kink": Case(
        kink,
        "Unroll()",
        "generalised gradient: strict complementarity fails",
        frozenset({Symptom.NO_STRICT_COMPLEMENTARITY, Symptom.NOT_CONFIRMED}),
        warn(INEXACT, ONE, TEN),
    ),
    "ρ > 1": Case(
        unstable,
        None,
        "smaller step",
        frozenset({Symptom.REPELLING}),
        warn(LOST, GMRES, CG, BICG, DENSE, TEN, HUNDRED) | warn(INEXACT, ONE),
    ),
}


@functools.cache
def diagnosis(name: str) -> Diagnosis:
    case = CASES[name]
    problem, algorithm, loss, x0 = case.build()
    reference = lg.Stop(case.reference, tol=1e-12)
    return lg.diagnose(problem, algorithm, loss, x0, stop=case.stop, reference=reference)


@pytest.mark.parametrize("name", CASES)
def test_a_known_answer(name: str) -> None:
    case, d = CASES[name], diagnosis(name)
    # what to use, and why, in one sentence
    advice = d.recommendation
    label = None if advice.gradient is None else measure.label(advice.gradient)
    assert label == case.recommended
    assert case.reason in advice.sentence
    assert advice.sentence.endswith(".")
    assert ". " not in advice.sentence
    # what is wrong: exactly that
    assert d.symptoms == case.signs
    assert {r.label: ", ".join(r.warnings) for r in d.rows if r.warnings} == case.says
    # the bound is never below the error
    bounded = [r for r in d.rows if r.bound is not None]
    assert len(bounded) >= 6
    for row in bounded:
        assert row.error <= row.bound, row.label
    # nor, where all is well, far above it
    if not case.signs:
        row = d.row(TEN)
        assert row.bound <= max(20 * row.error, 1e-12)
        assert d.row(GMRES).bound < 1e-4


def test_one_over_one_minus_rho_is_no_bound_where_the_map_is_not_normal() -> None:
    """A primal–dual map is skew: its inverse is twice as large as its spectrum says."""
    facts = diagnosis("smooth potts").facts
    assert facts.certified
    assert facts.amplification > 1.9 / (1 - facts.spectral_radius)


# --- facts ----------------------------------------------------------------------------------------


def test_the_spectrum_of_gradient_descent() -> None:
    """I − H with H = diag(0.1, …, 1)."""
    facts = diagnosis("ridge").facts
    assert facts.spectral_radius == pytest.approx(0.9, abs=1e-12)
    assert facts.amplification == pytest.approx(10, rel=1e-10)
    assert facts.rate == pytest.approx(0.9, abs=1e-4)
    assert not facts.sublinear
    assert facts.margin.value == torch.inf


def test_the_paper_s_numbers() -> None:
    """Errata: the analytic gradient at θ = 0.3, and the limit λb/2·(x(0) − g) at θ = 0."""
    assert float(diagnosis("toy at θ = 0.3").reference.gradient) == pytest.approx(-0.17215831)
    assert float(diagnosis("toy at θ = 0").reference.gradient) == pytest.approx(-0.25, abs=1e-3)
    for name in ("toy at θ = 0.3", "toy at θ = 0"):
        assert diagnosis(name).reference.disagreement < 1e-6


def test_margins() -> None:
    """Thresholding (1, −2, 0.1) at 0.3; the entropic ratio exp(−α∂f); 1/n; nothing at a kink."""
    assert diagnosis("denoising").facts.margin.value == pytest.approx(0.2)
    b, A_ = by_name("nnls entropic").parameters[1], A
    d = diagnosis("entropic boundary")
    x = lg.solve(*by_name("nnls entropic").build(A_, b), stop=lg.Stop(500)).x
    decay = 1 - torch.exp(-0.4 * (A_.T @ (A_ @ x - b)))[x < 1e-12]
    assert d.facts.margin.value == pytest.approx(float(decay.min()), rel=1e-6)
    loose = diagnosis("no strict complementarity")
    assert loose.facts.margin.value == pytest.approx(1 / loose.reference.iterations, rel=0.05)
    assert diagnosis("kink").facts.margin.value < 1e-15


def test_how_two_starts_end() -> None:
    apart = diagnosis("linear program").facts.uniqueness
    assert apart.primal > 0.1
    assert apart.gap < 1e-12
    together = diagnosis("tv").facts.uniqueness
    assert together.settled
    assert together.primal < 1e-12
    assert together.dual < 1e-12
    assert not diagnosis("toy at θ = 0").facts.uniqueness.settled


@pytest.mark.parametrize("inertia", [0.5, lg.Nesterov(), lg.Nesterov(restart=True)], ids=repr)
def test_duplicated_features_have_no_unique_solution(inertia: float | lg.Nesterov) -> None:
    features, y = random(1, 12, 6), random(2, 12)
    fit = lg.LeastSquares(torch.cat([features, features], 1), y)
    algorithm = lg.ForwardBackward(inertia=inertia)
    setting = Setting(lg.Composite(fit, lg.L1(0.3)), algorithm, slope, None)
    path = follow(setting, lg.Stop(5000, tol=1e-12), 1)
    found = compare_starts(setting, path, None)
    assert found is not None
    assert found.settled
    assert not found.unique
    assert found.gap is not None
    assert found.gap < 1e-12


def test_memory_of_unrolling_grows_and_that_of_a_fixed_point_does_not() -> None:
    d = diagnosis("ill-conditioned lasso")
    assert d.row("Unroll()").peak_bytes > 5 * d.row(GMRES).peak_bytes
    assert d.row("Unroll(last=100)").peak_bytes > 2 * d.row("Unroll(last=10)").peak_bytes
    assert d.row("Unroll(checkpoint='sqrt')").peak_bytes < d.row("Unroll()").peak_bytes / 5


def test_cosines_and_seconds() -> None:
    d = diagnosis("ρ > 1")
    assert d.row(GMRES).cosine == pytest.approx(1)
    assert d.row("FixedPoint(terms=10)").cosine == pytest.approx(-1)
    assert all(0 < r.seconds < 60 for r in d.rows)


def test_the_text_holds_everything() -> None:
    d = diagnosis("slow tv")
    text = str(d)
    for row in d.rows:
        assert row.label in text
    joined = " ".join(text.split())  # lines are wrapped
    assert "does not apply: CG needs a step whose derivative is symmetric" in joined
    assert "! not converged: the solve stops at residual" in joined
    assert joined.endswith(f"→ {d.recommendation.sentence}")
    assert "spectral radius of A_x  0.96" in text
    assert "exact" in text
