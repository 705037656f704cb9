"""Verdicts that are never confidently wrong, and words that are never cut."""

import dataclasses
import functools
import re

import numpy
import pytest
import scipy.optimize
import scipy.special
import torch

import legato as lg
from legato.diagnostics import Finding, Symptom, words
from legato.diagnostics.reference import follow
from legato.diagnostics.setting import Setting
from legato.diagnostics.spectrum import rate
from legato.diagnostics.verdict import recommend
from problems import TARGET, A, by_name, random

b = TARGET
FEW = (lg.Implicit(), lg.FixedPoint(10), lg.Unroll())
PLAIN = lg.ForwardBackward(1.0, inertia=0.0)


def number(value):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def slope(x):
    return by_name("lasso").loss(x)


def diagnose(problem, algorithm=None, loss=slope, x0=None, **options):
    options = {
        "stop": lg.Stop(120),
        "reference": lg.Stop(1000, tol=1e-12),
        "gradients": FEW,
    } | options
    return lg.diagnose(problem, algorithm or lg.ForwardBackward(), loss, x0, **options)


# --- never confidently wrong ----------------------------------------------------------------------


def test_a_slow_linear_rate_is_not_called_sublinear():
    """ρ = 0.999: faster components die out first, so that the rate creeps up to ρ, and stays."""
    Q = torch.diag(torch.logspace(-3, 0, 12, dtype=torch.float64))
    problem = lg.Composite(lg.Quadratic(Q, random(3, 12).requires_grad_()))
    residuals = follow(Setting(problem, PLAIN, slope), lg.Stop(2500), 1).residuals
    asked = []
    rate(residuals, 1e-14, lambda: asked.append("ρ"))
    assert asked  # the residuals alone suggest a power of n
    assert not rate(residuals, 1e-14, lambda: {1024: 0.999, 2500: 0.999})[1]
    d = diagnose(problem, PLAIN, reference=lg.Stop(2500, tol=1e-12))
    assert d.facts.spectral_radius == pytest.approx(0.999)
    assert not d.facts.sublinear
    assert d.symptoms == {Symptom.NOT_CONVERGED}


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_a_power_law_is_sublinear(p):
    residuals = [n**-p for n in range(1, 1001)]
    assert rate(residuals, 1e-14, lambda: {256: 1 - p / 256, 1000: 1 - p / 1000})[1]
    assert not rate(residuals, 1e-14, lambda: None)[1]  # nothing is claimed where ρ is not known


def test_a_flat_minimum_is_sublinear():
    """¼(x − θ)⁴ by gradient descent: x − θ falls like 1/√n and the residual like n^{-3/2}."""
    theta = number(1.0)
    problem = lg.Composite(lg.Smooth(lambda x: (x - theta).pow(4).sum() / 4))
    start = torch.zeros(1, dtype=torch.float64)
    algorithm = lg.ForwardBackward(0.1, inertia=0.0)
    d = diagnose(problem, algorithm, x0=start, reference=lg.Stop(1000, 1e-12), directions=0)
    assert d.facts.sublinear
    n = d.reference.iterations
    assert n * (1 - d.facts.spectral_radius) == pytest.approx(1.5, rel=0.02)


@functools.cache
def logistic_lasso():
    """Correlated features, 300 plain steps: far from its solution, which it approaches linearly."""
    features = random(0, 200, 24) @ (torch.eye(24) + 0.09).double()
    truth = torch.zeros(24, dtype=torch.float64)
    truth[:6] = random(1, 6)
    labels = torch.sign(features @ truth + 0.5 * random(2, 200))
    weight = number(0.5)
    problem = lg.Composite(lg.Logistic(features, labels), lg.L1(weight))

    def loss(x):
        return (x - truth).square().sum()

    d = lg.diagnose(
        problem,
        lg.ForwardBackward(inertia=0.0),
        loss,
        stop=lg.Stop(300),
        gradients=FEW,
        reference=lg.Stop(2500, tol=1e-12),
        directions=0,
    )
    return problem, weight, loss, d, _implicit_slope(features, labels, truth, 0.5)


def _implicit_slope(features, labels, truth, weight):
    """dL/dλ = −∇L_Sᵀ H_SS⁻¹ sign(x_S) at a solution by another method, in NumPy and SciPy."""
    Z, goal = (labels[:, None] * features).numpy(), truth.numpy()

    def split(uv):  # x = u − v with u, v ≥ 0: a smooth problem with bounds
        x = uv[:24] - uv[24:]
        slope = -Z.T @ scipy.special.expit(-Z @ x)
        value = numpy.logaddexp(0, -Z @ x).sum() + weight * uv.sum()
        return value, numpy.concatenate([slope + weight, weight - slope])

    options = {"maxiter": 20000, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 30}
    found = scipy.optimize.minimize(
        split,
        numpy.zeros(48),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * 48,
        options=options,
    )
    x = found.x[:24] - found.x[24:]
    S = numpy.abs(x) > 1e-6
    signs = numpy.sign(x[S])

    def curvature():
        p = scipy.special.expit(Z @ x)
        return (Z[:, S].T * (p * (1 - p))) @ Z[:, S]

    for _ in range(10):  # Newton on the support
        x[S] -= numpy.linalg.solve(
            curvature(), -Z[:, S].T @ scipy.special.expit(-Z @ x) + weight * signs
        )
    slope = -Z.T @ scipy.special.expit(-Z @ x)
    assert numpy.array_equal(numpy.sign(x[S]), signs)
    assert numpy.abs(slope[S] + weight * signs).max() < 1e-10
    assert numpy.abs(slope[~S]).max(initial=0) < weight
    return float(-(2 * (x - goal)[S]) @ numpy.linalg.solve(curvature(), signs))


def test_a_slow_logistic_lasso_is_told_how_many_iterations_it_needs():
    problem, weight, loss, d, truth = logistic_lasso()
    assert not d.facts.sublinear
    assert Symptom.NOT_CONVERGED in d.symptoms
    assert Symptom.SUBLINEAR not in d.symptoms
    assert d.outlook.iterations > 1000
    words = d.recommendation.sentence
    number = int(re.match(r"Run about (\d+) iterations, for a residual of ", words)[1])
    assert 0 <= number - d.outlook.iterations <= 0.1 * number
    quick = f", or inertia=Nesterov(restart=True), which took {d.outlook.restarted}: "
    assert words.index(quick) < words.index("Unroll()") < words.index("its own error here is")

    def error(iterations, inertia):
        algorithm = lg.ForwardBackward(inertia=inertia)
        x = lg.solve(problem, algorithm, stop=lg.Stop(iterations)).x
        (found,) = torch.autograd.grad(loss(x), weight)
        return abs(float(found) / truth - 1)

    # What it says is so: by then unrolling is right, and not much before.
    assert d.recommendation.error == pytest.approx(error(300, 0.0), rel=0.2)
    assert error(d.outlook.iterations, 0.0) < 5e-3
    assert error(d.outlook.iterations // 2, 0.0) > 1e-2
    assert d.outlook.restarted < d.outlook.iterations / 5
    assert error(d.outlook.restarted, lg.Nesterov(restart=True)) < 0.05


def test_a_reference_that_has_not_converged_recommends_nothing_as_right():
    """300 iterations measured against 300 agree with themselves, and with nothing else."""
    problem, _, loss, _, truth = logistic_lasso()
    short = lg.Stop(300, tol=1e-12)
    d = lg.diagnose(
        problem,
        lg.ForwardBackward(inertia=0.0),
        loss,
        stop=short,
        gradients=FEW,
        reference=short,
        directions=0,
    )
    assert d.row("Unroll()").error < 1e-12
    assert abs(float(d.reference.gradient) / truth - 1) > 0.1
    assert d.reference.uncertainty > 0.1
    assert not d.reference.settles(1e-3)
    assert "right" not in d.recommendation.sentence
    assert re.match(r"Run (about \d+|more) iterations", d.recommendation.sentence)
    assert "against a reference that has not converged (uncertain by" in d.recommendation.sentence


def test_a_recommendation_names_its_own_error():
    d = diagnose(lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3))))
    error = d.row("Implicit(GMRES())").error
    assert d.recommendation.error == error
    assert f"its own error here is {error:.1e}." in d.recommendation.sentence
    finding = Finding(Symptom.NOT_CONFIRMED, "…")
    rough = dataclasses.replace(d.row("Unroll()"), error=0.42)
    advice = recommend([rough], d.facts, [finding], 1e-3, d.reference)
    assert advice.error == 0.42
    assert "4.2e-01, more than 10 % off the reference" in advice.sentence
    unmeasured = recommend(d.rows[:1], d.facts, [finding], 1e-3, d.reference)
    assert unmeasured.error is None
    assert "not measured" in unmeasured.sentence


@functools.cache
def all_strategies():
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3)))
    return diagnose(problem, gradients=None, directions=0)


# --- what is printed and drawn --------------------------------------------------------------------


def test_no_printed_line_is_longer_than_80_columns_and_nothing_is_left_out():
    d = diagnose(lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3))))
    long = lg.Implicit(lg.GMRES(tol=1.25e-07, restart=17, iterations=123))
    rows = (*d.rows, dataclasses.replace(d.rows[0], gradient=long, products=1234567))
    text = str(dataclasses.replace(d, rows=rows))
    assert max(map(len, text.splitlines())) <= 80
    printed = text.split()
    for row in rows:
        assert all(part in printed for part in row.label.split())
        assert f"{row.error:.1e}" in printed
    assert "1234567" in printed
    assert " ".join(d.recommendation.sentence.split()) in " ".join(printed)


def test_every_column_and_fact_has_a_key():
    d = diagnose(lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3))))
    lines = str(d).splitlines()
    at = lines.index("Columns")
    for name in lines[0].split()[1:]:
        assert any(line.split()[:1] == [name] for line in lines[at:]), name
    below = "\n".join(lines[at:])
    for name, _ in words.facts(d.facts, d.reference):
        assert name == "loss" or f"  {name}: " in below


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (1, {"figsize": (7, 4)}),
        (2, {"figsize": (8, 8), "layout": "constrained"}),
    ],
)
def test_labels_of_the_plot_do_not_collide_and_stay_in_the_figure(rows, settings):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    from matplotlib.text import Text

    d = all_strategies()
    assert len(d.rows) >= 10
    figure, axes = pyplot.subplots(rows, 1, squeeze=False, **settings)
    axes = axes[:, 0]
    for ax in axes:
        d.plot(ax)
    figure.canvas.draw()
    for ax in axes:
        boxes = [Text.get_window_extent(t) for t in ax.texts]  # without their lines
        assert len(boxes) == sum(r.skipped is None for r in d.rows)
        for i, box in enumerate(boxes):
            assert figure.bbox.x0 <= box.x0
            assert box.x1 <= figure.bbox.x1
            assert not any(box.overlaps(other) for other in boxes[:i])
    pyplot.close(figure)
