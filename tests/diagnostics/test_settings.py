"""The diagnosis finds θ wherever it is kept, copies what it can, and says what it could not."""

import dataclasses

import pytest
import torch

import legato as lg
from legato.diagnostics import Sign
from legato.diagnostics.adjoint import LARGEST_DENSE
from legato.diagnostics.verdict import recommend
from makers import randn
from problems import TARGET, A, by_name, random

b = TARGET
FEW = (lg.Implicit(), lg.FixedPoint(10), lg.Unroll())
SCALE = torch.tensor([0.5], requires_grad=True)  # a global, in float32


def number(value, dtype=torch.float64):
    return torch.tensor(value, dtype=dtype, requires_grad=True)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def slope(x):
    return by_name("lasso").loss(x)


def diagnose(problem, algorithm=None, loss=slope, x0=None, **options):
    options = {
        "stop": lg.Stop(300),
        "reference": lg.Stop(1000, tol=1e-12),
        "gradients": FEW,
    } | options
    return lg.diagnose(problem, algorithm or lg.ForwardBackward(), loss, x0, **options)


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


def test_a_module_in_float32_is_copied_in_float64():
    torch.manual_seed(0)
    net = Net()
    problem = lg.Composite(lg.Smooth(net), lg.L1(0.01))
    algorithm = lg.ForwardBackward(0.1)
    x0 = torch.zeros(5)
    d = diagnose(problem, algorithm, slope, x0)
    assert d.reference.dtype == torch.float64
    assert d.signs == frozenset()
    found = {tuple(p.shape) for p in net.parameters()}
    assert d.reference.gradient.numel() == sum(p.numel() for p in net.parameters())
    assert found == {(3, 5), (3,)}
    assert 1e-9 < d.row("Unroll()").error < 1e-5  # float32 against float64
    for row in d.rows:
        assert row.bound is None or row.bound >= row.error


def test_closures_globals_and_computed_tensors_are_followed():
    t = number(-1.0, torch.float32)
    target = torch.randn(4, generator=torch.Generator().manual_seed(0))

    def energy(x):
        return 0.5 * (SCALE * x - target) ** 2 + 0.1 * x**2

    problem = lg.Composite(lg.Smooth(energy), lg.L1(t.exp()))  # exp(t) is computed beforehand
    algorithm = lg.ForwardBackward(1.0)
    x0 = torch.zeros(4)
    d = diagnose(problem, algorithm, slope, x0)
    assert d.reference.dtype == torch.float64
    assert d.reference.gradient.numel() == 2
    assert d.reference.disagreement < 1e-6
    truth = gradient_of(problem, algorithm, slope, x0, [SCALE, t])
    torch.testing.assert_close(
        d.reference.gradient.sort().values, truth.sort().values, rtol=1e-4, atol=1e-5
    )


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


# --- what cannot be copied ------------------------------------------------------------------------


def test_a_callable_with_a_fixed_dtype_leaves_the_reference_in_its_precision():
    w = number(0.3, torch.float32)

    def energy(x):
        return 0.5 * (x - torch.ones(4, dtype=torch.float32)) ** 2 + 0 * x.float()

    def loss(x):
        return (x.float() ** 2).sum()

    d = diagnose(
        lg.Composite(lg.Smooth(energy), lg.L1(w)), lg.ForwardBackward(0.5), loss, torch.zeros(4)
    )
    assert d.signs == {Sign.LOW_PRECISION}
    assert d.reference.dtype == torch.float32
    assert d.recommendation.gradient is not None


class Stubborn(lg.Function):
    """A smooth term that refuses to be copied."""

    def __init__(self, target):
        self.target = target

    def __deepcopy__(self, memo):
        raise TypeError("no copies")

    def value(self, x):
        return 0.5 * (x - self.target).square().sum()

    def grad(self, x):
        return x - self.target


def test_what_cannot_be_copied_is_differentiated_in_place_and_unchecked():
    target = randn(3).requires_grad_()
    d = diagnose(lg.Composite(Stubborn(target), lg.L1(0.1)), lg.ForwardBackward(0.5), x0=0 * b[:3])
    assert d.reference.disagreement is None
    assert d.facts.spectral_radius is None
    assert d.row("Unroll()").error < 1e-12
    assert "not checked by differences" in str(d)


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
    assert Sign.DUAL_NOT_UNIQUE in d.signs
    assert d.facts.uniqueness.primal < 1e-6


def test_a_recommendation_without_a_certificate_says_so():
    d = diagnose(lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3))))
    assert "certifies" not in d.recommendation.sentence
    row = dataclasses.replace(d.row("Implicit(GMRES())"), bound=torch.inf)
    advice = recommend([row], d.facts, d.reference, (), tol=1e-3)
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
    assert d.signs == {Sign.NOT_UNIQUE}
    assert d.facts.uniqueness.primal > 0.05


def test_a_gradient_that_is_zero():
    """θ below 0 only pushes against a constraint."""
    t = number(-0.5)
    problem = lg.Composite(
        lg.LeastSquares(lg.Identity(), t * torch.ones(2).double()), lg.NonNegative()
    )
    d = diagnose(problem, lg.ForwardBackward(0.5), lambda x: (x - 1).square().sum())
    assert d.signs == {Sign.ZERO_GRADIENT}
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
    d = diagnose(problem, stop=lg.Stop(20, tol=1e-9))
    assert d.facts.converged is False
    assert d.signs == {Sign.NOT_CONVERGED}
    assert d.row("Implicit(GMRES())").warnings == ("NotConvergedWarning",)


def test_a_loss_that_changes_by_itself_is_not_confirmed():
    calls = iter(range(10**6))
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(number(0.3)))

    def loss(x):  # what autograd sees is not what changes
        return slope(x) + 1e-2 * next(calls)

    d = diagnose(problem, loss=loss)
    assert Sign.NOT_CONFIRMED in d.signs
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
    theta = p.leaves(torch.float32)
    matrix, target, w = theta
    problem = lg.Composite(lg.LeastSquares(matrix, target), lg.L1(w))
    d = diagnose(
        problem, lg.ForwardBackward(0.35), p.loss, gradients=(*FEW, lg.Implicit(lg.Direct()))
    )
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
    assert axes.labels == [r.label for r in d.rows]
    assert axes.colours == ["tab:green", "tab:red", "tab:blue"]  # recommended, warns, neither
    assert axes.lines == 2
    assert axes.settings["xscale"] == axes.settings["yscale"] == "log"


def test_functions_that_belong_to_no_module():
    """As those of a bare exec, or of some notebooks."""
    names = {}
    exec("loss = lambda x: x.square().sum()", names)
    assert names["loss"].__module__ is None
    weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    data = lg.LeastSquares(torch.eye(3).double(), torch.tensor([3.0, 2.0, 1.0]).double())
    diagnosis = lg.diagnose(
        lg.Composite(data, lg.L1(weight)), lg.ForwardBackward(), names["loss"], stop=lg.Stop(50)
    )
    assert diagnosis.recommendation.gradient is not None
