"""The diagnosis finds θ wherever it is kept, as given or made in two precisions."""

import dataclasses
import warnings

import pytest
import torch

import legato as lg
from legato.diagnostics import Symptom
from legato.diagnostics.spectrum import LARGEST_DENSE
from legato.diagnostics.verdict import recommend
from makers import randn
from problems import TARGET, A, by_name, random

b = TARGET
FB = lg.ForwardBackward(0.35)
FEW = (lg.Implicit(), lg.FixedPoint(10), lg.Unroll())


def number(value, dtype=torch.float64):
    return torch.tensor(value, dtype=dtype, requires_grad=True)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def slope(x):
    return by_name("lasso").loss(x)


def diagnose(problem, algorithm=None, loss=slope, x0=None, **options):
    options = {
        "stop": lg.Stop(120),
        "reference": lg.Stop(600, tol=1e-12),
        "gradients": FEW,
    } | options
    return lg.diagnose(problem, algorithm or lg.ForwardBackward(), loss, x0, **options)


def made(make, **options):
    """The same, by a factory."""
    options = {
        "stop": lg.Stop(120),
        "reference": lg.Stop(600, tol=1e-12),
        "gradients": FEW,
    } | options
    return lg.diagnose(make, **options)


def gradient_of(problem, algorithm, loss, x0, params, iterations=600):
    """The truth by unrolling the user's own objects."""
    x = lg.solve(problem, algorithm, x0, stop=lg.Stop(iterations)).x
    grads = torch.autograd.grad(loss(x), params, retain_graph=True)
    return torch.cat([g.reshape(-1) for g in grads]).double()


def agrees(found, expected, tol):
    assert found.reference.gradient.shape == expected.shape
    assert (found.reference.gradient - expected).norm() <= tol * expected.norm()


# --- where θ may be -------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 3)

    def forward(self, x):
        return self.layer(x).square().sum() + 0.5 * x.square().sum()


def make_net(dtype):
    torch.manual_seed(0)
    net = Net().to(dtype)
    problem = lg.Composite(lg.Smooth(net), lg.L1(0.01))
    return problem, lg.ForwardBackward(0.1), slope, torch.zeros(5, dtype=dtype)


def test_a_module_in_float32_is_measured_against_its_twin_in_float64():
    d = made(make_net)
    assert d.reference.dtype == torch.float64
    assert d.reference.twin
    assert "in a float64 twin" in str(d)
    assert d.symptoms == frozenset()
    assert d.reference.gradient.numel() == 3 * 5 + 3
    assert 1e-9 < d.row("Unroll()").error < 1e-5  # float32 against float64
    for row in d.rows:
        assert row.bound is None or row.bound >= row.error


def make_computed(dtype):
    """exp(t) is computed beforehand, and what a closure holds is nobody's field."""
    t, scale = number(-1.0, dtype), number([0.5], dtype)
    target = torch.randn(4, generator=torch.Generator().manual_seed(0)).to(dtype)

    def energy(x):
        return 0.5 * (scale * x - target) ** 2 + 0.1 * x**2

    problem = lg.Composite(lg.Smooth(energy), lg.L1(t.exp()))
    return problem, lg.ForwardBackward(1.0), slope, torch.zeros(4, dtype=dtype), [scale, t]


def test_an_energy_is_diagnosed_as_its_splitting():
    weight = number(0.3)
    data = lg.LeastSquares(A, b)
    options = {"stop": lg.Stop(120), "reference": lg.Stop(600, tol=1e-12), "gradients": FEW}
    whole = lg.diagnose(data + lg.L1(weight), None, slope, **options)
    parts = lg.diagnose(lg.Composite(data, lg.L1(weight)), lg.ForwardBackward(), slope, **options)
    torch.testing.assert_close(whole.reference.gradient, parts.reference.gradient)
    assert whole.recommendation.gradient == parts.recommendation.gradient


def test_closures_and_computed_tensors_are_followed():
    problem, algorithm, loss, x0, params = make_computed(torch.float64)
    truth = gradient_of(problem, algorithm, loss, x0, params)
    d = made(make_computed)
    assert d.reference.dtype == torch.float64
    assert d.reference.disagreement < 1e-6
    agrees(d, truth, 1e-10)
    found = made(lambda dtype: make_computed(dtype)[:4])  # whatever the order
    torch.testing.assert_close(found.reference.gradient.sort().values, truth.sort().values)
    given = diagnose(problem, algorithm, loss, x0, params=params)
    agrees(given, truth, 1e-10)
    assert given.reference.disagreement < 1e-6
    assert not given.reference.twin


def test_what_autograd_does_not_see_is_not_confirmed():
    def make(dtype):
        t = number(0.3, dtype)
        smooth = lg.Smooth(lambda x: 0.5 * ((x - 1) ** 2).sum() + (t + t.detach()) * x.sum())
        return lg.Composite(smooth), lg.ForwardBackward(0.5), slope, torch.zeros(3, dtype=dtype)

    assert Symptom.NOT_CONFIRMED in made(make).symptoms


def test_params_choose_what_is_differentiated():
    w, scale = number(0.3), number(1.0)
    problem = lg.Composite(lg.LeastSquares(A, scale * b), lg.L1(w))
    both = diagnose(problem)
    one = diagnose(problem, params=w)
    assert both.reference.gradient.numel() == 2
    agrees(one, gradient_of(problem, lg.ForwardBackward(), slope, None, [w]), 1e-10)


def test_a_loss_that_depends_on_the_parameters_itself():
    w = number(0.3)
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))

    def loss(x):
        return slope(x) + 3 * w**2

    d = diagnose(problem, loss=loss)
    agrees(d, gradient_of(problem, lg.ForwardBackward(), loss, None, [w]), 1e-10)
    assert d.row("Implicit(GMRES())").error < 1e-8
    assert d.row("Implicit(GMRES())").bound < 1e-6


def test_nothing_of_the_user_s_is_changed():
    w = number(0.3)
    data = b.clone()
    problem = lg.Composite(lg.LeastSquares(A, data), lg.L1(w))
    before = w.item()
    diagnose(problem)
    assert w.grad is None
    assert w.item() == before
    assert torch.equal(data, b)
    assert problem.nonsmooth.weight is w


# --- precision ------------------------------------------------------------------------------------


def lasso(dtype):
    w = number(0.3, dtype)
    return lg.Composite(lg.LeastSquares(A.to(dtype), b.to(dtype)), lg.L1(w)), FB, slope


def test_a_factory_is_measured_in_the_precision_that_is_asked_for():
    asked = []

    def make(dtype):
        asked.append(dtype)
        return lasso(dtype)

    single, double = made(make), made(make, dtype=torch.float64)
    assert asked == [torch.float32, torch.float64, torch.float64]
    assert single.reference.twin
    assert not double.reference.twin
    torch.testing.assert_close(single.reference.gradient, double.reference.gradient)
    assert "in float64, as given" in str(double)
    assert double.row("Unroll()").error < 1e-12 < single.row("Unroll()").error < 1e-5


def test_a_factory_without_a_dtype_is_measured_as_it_is():
    d = made(lambda: lasso(torch.float64))
    assert d.symptoms == frozenset()
    d = made(lambda n=5: lasso(torch.float32))
    assert d.symptoms == {Symptom.LOW_PRECISION}
    assert d.reference.dtype == torch.float32
    assert "measured as given, in torch.float32" in str(d)
    assert "diagnose(make)" in str(d)
    assert d.recommendation.gradient is not None


def test_a_problem_with_a_fixed_dtype_has_a_reference_of_that_precision():
    w = number(0.3, torch.float32)

    def energy(x):
        return 0.5 * (x - torch.ones(4, dtype=torch.float32)) ** 2 + 0 * x.float()

    def loss(x):
        return (x.float() ** 2).sum()

    d = diagnose(
        lg.Composite(lg.Smooth(energy), lg.L1(w)), lg.ForwardBackward(0.5), loss, torch.zeros(4)
    )
    assert d.symptoms == {Symptom.LOW_PRECISION}
    assert d.reference.dtype == torch.float32
    assert d.recommendation.gradient is not None


class Own(lg.Function):
    """A user's smooth term that refuses to be copied."""

    def __init__(self, target):
        self.target = target

    def __deepcopy__(self, memo):
        raise TypeError("no copies")

    def value(self, x):
        return 0.5 * (x - self.target).square().sum()

    def grad(self, x):
        return x - self.target


def test_nothing_need_be_copied():
    target = randn(3).requires_grad_()
    d = diagnose(lg.Composite(Own(target), lg.L1(0.1)), lg.ForwardBackward(0.5), x0=0 * b[:3])
    assert d.reference.disagreement < 1e-6
    assert d.facts.spectral_radius == pytest.approx(0.5)
    assert d.row("Unroll()").error < 1e-12


# --- what else can be found -----------------------------------------------------------------------


def test_a_dual_that_is_not_unique():
    """On a grid, the dual of a flat region is not."""
    p = by_name("potts")
    problem, algorithm, x0 = p.build(*p.leaves())
    d = diagnose(
        problem,
        algorithm,
        p.loss,
        x0,
        stop=lg.Stop(200),
        reference=lg.Stop(1500, 1e-11),
        gradients=[lg.Unroll()],
    )
    assert Symptom.DUAL_NOT_UNIQUE in d.symptoms
    assert d.facts.uniqueness.primal < 1e-6


def test_a_recommendation_without_a_certificate_says_so():
    d = diagnose(lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3))))
    assert "certifies" not in d.recommendation.sentence
    row = dataclasses.replace(d.row("Implicit(GMRES())"), bound=torch.inf)
    advice = recommend([row], d.facts, (), 1e-3, d.reference)
    assert advice.gradient == lg.Implicit()
    assert "no bound certifies it" in advice.sentence


def test_a_loss_that_sees_only_what_is_determined():
    """Four unknowns in three equations: the loss is the same for all minimisers."""
    matrix = torch.cat([torch.eye(3), torch.ones(3, 1)], dim=1).double()
    target = number(1.0) * vector(1.0, 2.0, 3.0)
    problem = lg.Composite(lg.LeastSquares(matrix, target))

    def loss(x):  # sees only what is determined
        return (matrix @ x).square().sum() + (x[:3] + x[3]).sum()

    d = diagnose(problem, lg.ForwardBackward(), loss)
    assert d.row("Implicit(GMRES())").bound == torch.inf
    assert d.symptoms == {Symptom.NOT_UNIQUE}
    assert d.facts.uniqueness.primal > 0.05


def test_a_gradient_that_is_zero():
    """θ below 0 only pushes against a constraint."""
    t = number(-0.5)
    problem = lg.Composite(
        lg.LeastSquares(lg.Identity(), t * torch.ones(2).double()), lg.NonNegative()
    )
    d = diagnose(problem, lg.ForwardBackward(0.5), lambda x: (x - 1).square().sum())
    assert d.symptoms == {Symptom.ZERO_GRADIENT}
    assert d.row("Unroll()").error == 0
    assert d.row("Unroll()").cosine is None


def test_an_average_is_no_fixed_point():
    p = by_name("tv 1d")
    problem, algorithm, x0 = p.build(*p.leaves())
    algorithm = dataclasses.replace(algorithm, average=True)
    d = diagnose(problem, algorithm, p.loss, x0, stop=lg.Stop(100), reference=lg.Stop(400, 1e-12))
    assert "averaged" in d.row("Implicit(GMRES())").skipped
    assert d.facts.spectral_radius is None
    assert d.row("Unroll()").error is not None
    assert d.recommendation.gradient == lg.Unroll()


def test_a_tolerance_that_was_missed():
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3)))
    d = diagnose(problem, stop=lg.Stop(12, tol=1e-9))
    assert d.facts.converged is False
    assert d.symptoms == {Symptom.NOT_CONVERGED}
    assert d.row("Implicit(GMRES())").warnings == ("NotConvergedWarning",)
    assert d.row("Unroll()").warnings == ()  # exact for what was computed


def test_warnings_of_the_loss_are_heard_from_every_row():
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3)))

    def loss(x):
        warnings.warn("the loss is new", UserWarning, stacklevel=1)
        return slope(x)

    def heard(gradients):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            diagnose(problem, loss=loss, gradients=gradients)
        return sum("the loss is new" in str(w.message) for w in found)

    assert heard(FEW) >= heard(FEW[:1]) + len(FEW) - 1


def test_a_loss_that_changes_by_itself_is_not_confirmed():
    calls = iter(range(10**6))
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3)))

    def loss(x):  # what autograd sees is not what changes
        return slope(x) + 1e-2 * next(calls)

    d = diagnose(problem, loss=loss)
    assert Symptom.NOT_CONFIRMED in d.symptoms
    assert "with care" in d.recommendation.sentence


def test_bounds_of_large_problems_hold_but_are_not_certified():
    n = LARGEST_DENSE + 44
    matrix = torch.diag(torch.linspace(0.5, 1, n, dtype=torch.float64))
    problem = lg.Composite(lg.LeastSquares(matrix, random(5, n)), lg.L1(number(0.1)))
    d = diagnose(problem, stop=lg.Stop(200), gradients=(*FEW, lg.OneStep(), lg.FixedPoint(3)))
    assert not d.facts.certified
    assert d.facts.spectral_radius == pytest.approx(0.75, abs=0.01)
    assert d.facts.amplification >= 4  # 1/0.25, where the smallest singular value is active
    for row in d.rows:
        assert row.bound is None or row.error <= row.bound
    assert d.row("FixedPoint(terms=3)").bound < 1e4 * d.row("FixedPoint(terms=3)").error


def test_float32_bounds_hold():
    p = by_name("lasso")

    def make(dtype):
        matrix, target, w = p.leaves(dtype)
        return lg.Composite(lg.LeastSquares(matrix, target), lg.L1(w)), FB, p.loss

    d = made(make, gradients=(*FEW, lg.Implicit(lg.Direct())))
    assert d.reference.dtype == torch.float64
    for row in d.rows:
        assert row.error > 0
        assert row.bound is None or row.error <= row.bound
    assert d.row("Implicit(Direct())").bound < 1e-3


class Recorder:
    """Axes that remember what was drawn."""

    def __init__(self):
        self.labels, self.colours, self.lines, self.settings = [], [], 0, {}

    def scatter(self, x, y, s, color, alpha):
        assert len(x) == len(y) == len(s) == 1
        assert min(*x, *y, *s) > 0
        self.colours.append(color)

    def annotate(self, label, point, **options):
        self.labels.append(label)

    def plot(self, x, y, **options):
        assert x[0] <= x[1]
        self.lines += 1

    def set(self, **settings):
        self.settings = settings


def test_plotting_draws_on_the_axes_it_is_given():
    d = diagnose(lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3))))
    axes = Recorder()
    assert d.plot(axes) is axes
    assert axes.labels == [r.label for r in sorted(d.rows, key=lambda r: r.seconds)]
    colours = dict(zip(axes.labels, axes.colours, strict=True))
    # recommended, warns, neither
    assert [colours[r.label] for r in d.rows] == ["tab:green", "tab:red", "tab:blue"]
    assert axes.lines == 2
    assert axes.settings["xscale"] == axes.settings["yscale"] == "log"
