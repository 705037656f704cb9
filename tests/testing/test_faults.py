"""Every law can fail: classes that are right pass, and each seeded fault is found by its law."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytest
import torch

import legato as lg
from legato.errors import LawError
from legato.testing import (
    check_algorithm,
    check_function,
    check_geometry,
    check_gradient,
    check_operator,
    check_prox,
)
from legato.testing.prox import monotonicity
from makers import randn

X = randn(4, seed=1)
E = lg.Euclidean()
A, b = randn(7, 4, seed=2), randn(7, seed=3)


def broken(law):
    """The law that a fault breaks, in the message of the error."""
    return pytest.raises(LawError, match=f"“{law}” .* is allowed")


# --- operators ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Running(lg.Operator):
    """Weighted running sums."""

    weights: torch.Tensor

    @property
    def coupled(self):
        return 1, 1

    def __call__(self, x):
        return (self.weights * x).cumsum(-1)

    def adjoint(self, y):
        return self.weights * y.flip(-1).cumsum(-1).flip(-1)

    def absolute(self):
        return Running(self.weights.abs())


class WrongSign(Running):
    def adjoint(self, y):
        return -super().adjoint(y)


class NoFlip(Running):
    def adjoint(self, y):
        return self.weights * y.cumsum(-1)


class WrongShape(Running):
    def adjoint(self, y):
        return super().adjoint(y).unsqueeze(0)


class Offset(Running):
    def __call__(self, x):
        return super().__call__(x) + 1e-6


class SmallNorm(Running):
    def norm(self, like=None):
        return 0.9 * super().norm(like)


class StaleNorm(Running):
    def norm(self, like=None):
        if "_norm" not in self.__dict__:
            object.__setattr__(self, "_norm", super().norm(like))
        return self._norm


class FrontAxis(Running):
    def __call__(self, x):
        return (self.weights * x).cumsum(0)

    def adjoint(self, y):
        return self.weights * y.flip(0).cumsum(0).flip(0)


class SmallAbsolute(Running):
    def absolute(self):
        return Running(self.weights)  # with their signs


class DetachedWeights(Running):
    def __call__(self, x):
        return (self.weights.detach() * x).cumsum(-1)


OPERATORS = [
    (WrongSign, "adjoint identity"),
    (NoFlip, "adjoint identity"),
    (WrongShape, "adjoint identity"),
    (Offset, "linearity|adjoint identity"),
    (SmallNorm, "norm is an upper bound"),
    (StaleNorm, "norm is an upper bound"),
    (FrontAxis, "batch = elements"),
    (SmallAbsolute, "absolute bounds entries"),
    (DetachedWeights, "derivatives in its tensors"),
]


def test_a_right_operator_passes():
    report = check_operator(Running(randn(4, seed=4)), X)
    assert "adjoint identity" in repr(report)
    assert 1 <= report["norm over true norm"] < 1.02
    assert None not in [law.value for law in report.laws]


@pytest.mark.parametrize(("fault", "law"), OPERATORS, ids=lambda p: getattr(p, "__name__", None))
def test_faults_of_operators(fault, law):
    with broken(f"({law})"):
        check_operator(fault(randn(4, seed=4)), X)


class NormOfTheFirst(Running):
    """One norm for a batch, of an element that is not the largest."""

    def norm(self, like=None):
        return Running(self.weights[0]).norm(like[0])


def test_one_norm_must_bound_every_element_of_a_batch():
    weights = randn(2, 4, seed=4) * torch.tensor([[1.0], [10.0]]).double()
    check_operator(Running(weights), randn(2, 4, seed=1))
    with broken("norm is an upper bound"):
        check_operator(NormOfTheFirst(weights), randn(2, 4, seed=1))


# --- functions ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Ridge(lg.Function):
    r"""½w‖x‖², with everything that a function can say."""

    weight: torch.Tensor

    def summands(self, x):
        return 0.5 * self.weight * x * x

    @property
    def coupled(self):
        return 0

    def grad(self, x):
        return self.weight * x

    def lipschitz(self):
        return self.weight

    def conjugate_values(self, y, batch=0):
        return (0.5 * y * y / self.weight).sum(tuple(range(batch, y.ndim)))


@lg.register_prox(Ridge, lg.Euclidean)
def ridge_prox(g, geometry, y, alpha):
    return y / (1 + alpha * g.weight)


class MissingFactor(Ridge):
    def grad(self, x):
        return x


class SmallLipschitz(Ridge):
    def lipschitz(self):
        return 0.9 * self.weight


class NotConvex(Ridge):
    def summands(self, x):
        return torch.cos(3 * x)

    def grad(self, x):
        return -3 * torch.sin(3 * x)

    def lipschitz(self):
        return None


class NarrowBounds(Ridge):
    def bounds(self):
        return -0.1, 0.1


class Leaking(Ridge):
    """Adds the mean over all elements of a batch."""

    def values(self, x, batch):
        found = super().values(x, batch)
        return 0.5 * (found + found.mean())


class NoConstant(Ridge):
    """The conjugate of ½w‖x‖² + 1 lacks its −1."""

    def value(self, x):
        return super().value(x) + 1


class WrongConjugate(Ridge):
    def conjugate_values(self, y, batch=0):
        return 2 * super().conjugate_values(y, batch)


class ForgottenPartner(Ridge):
    def conjugate(self):
        return self.make_conjugate()


class NotItsConjugate(Ridge):
    """Whose conjugate is that of twice the function, and has a prox of its own."""

    def make_conjugate(self):
        return Ridge(0.5 / self.weight)

    def conjugate_values(self, y, batch=0):
        raise NotImplementedError


FUNCTIONS = [
    (MissingFactor, "gradient"),
    (SmallLipschitz, "Lipschitz constant"),
    (NotConvex, "convexity"),
    (NarrowBounds, "bounds"),
    (Leaking, "batch = elements"),
    (NoConstant, "batch = elements|Fenchel–Young"),
    (WrongConjugate, "Fenchel–Young"),
    (ForgottenPartner, "Fenchel–Young"),
    (NotItsConjugate, "Fenchel–Young"),
]


def weight():
    return torch.tensor(0.6, dtype=torch.float64)


def test_a_right_function_passes():
    report = check_function(Ridge(weight()), X)
    assert None not in [law.value for law in report.laws]
    check_prox(Ridge(weight()), E, X, 0.7)


@pytest.mark.parametrize(("fault", "law"), FUNCTIONS, ids=lambda p: getattr(p, "__name__", None))
def test_faults_of_functions(fault, law):
    with broken(f"({law})"):
        check_function(fault(weight()), X)


# --- proxes ---------------------------------------------------------------------------------------


def with_prox(form):
    """A function w‖x‖₁ whose prox is ``form(weight, y, alpha)``."""

    @dataclass(frozen=True, eq=False, repr=False)
    class Norm(lg.Function):
        nonnegative: ClassVar = ("weight",)
        weight: torch.Tensor

        def summands(self, x):
            return self.weight * x.abs()

        @property
        def coupled(self):
            return 0

    @lg.register_prox(Norm, lg.Euclidean)
    def _(g, geometry, y, alpha):
        return form(g.weight, y, alpha)

    return Norm(weight())


def soft(threshold, y):
    kept = (y.abs() > threshold) | (threshold == 0)
    return torch.where(kept, y - threshold * y.sign(), 0 * y)


def leak(w, y, alpha):
    shrunk = soft(alpha * w, y)
    return shrunk + 1e-6 * (y.mean(0) - y[0]) if y.ndim > 1 else shrunk


PROXES = {
    "off by a factor": (lambda w, y, alpha: soft(alpha * w / 2, y), "optimality"),
    "step forgotten": (lambda w, y, alpha: soft(w, y), "optimality"),
    "sign lost": (lambda w, y, alpha: soft(alpha * w, y).abs(), "optimality"),
    "weight detached": (lambda w, y, alpha: soft(alpha * w.detach(), y), "derivatives"),
    "step detached": (
        lambda w, y, alpha: soft(torch.as_tensor(alpha).detach() * w, y),
        "derivatives",
    ),
    "y detached": (lambda w, y, alpha: soft(alpha * w, y.detach()), "derivatives"),
    "batch leak": (leak, "batch = elements"),
    "NaN swallowed": (
        lambda w, y, alpha: torch.where(y.isnan(), 0.0, soft(alpha * w, y)),
        "NaN in, NaN out",
    ),
    "a mean of both sides of a kink": (
        lambda w, y, alpha: y - torch.maximum(torch.minimum(y, alpha * w), -alpha * w),
        "one-sided at ties",
    ),
    "no derivative in a weight of zero": (
        lambda w, y, alpha: y - torch.clamp(y, -alpha * w, alpha * w),
        "one-sided at ties",
    ),
}
Y = torch.tensor([2.0, -0.1, 0.9, -1.7], dtype=torch.float64)


def test_a_right_prox_passes():
    report = check_prox(with_prox(lambda w, y, alpha: soft(alpha * w, y)), E, Y, 0.7)
    assert None not in [law.value for law in report.laws]


@pytest.mark.parametrize("name", PROXES)
def test_faults_of_proxes(name):
    form, law = PROXES[name]
    with broken(law):
        check_prox(with_prox(form), E, Y, 0.7)


def test_a_map_that_is_no_prox():
    rotation = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)

    class Free(lg.Function):
        def value(self, x):
            return 0 * x.sum()

    @lg.register_prox(Free, lg.Euclidean)
    def _(g, geometry, y, alpha):
        return y @ rotation

    y = randn(2, seed=5)
    with broken("symmetric and monotone"):
        monotonicity(Free(), E, y, 1.0)
    lg.register_prox(Free, lg.Euclidean)(lambda g, geometry, y, alpha: -y.round())
    with broken("symmetric and monotone"):
        monotonicity(Free(), E, 3 * y, 1.0)


# --- geometries -----------------------------------------------------------------------------------


class Hellinger(lg.Geometry):
    r"""ψ(x) = −Σ √(1 − x²) on (−1, 1)."""

    def summands(self, x):
        return -torch.sqrt(1 - x * x)

    @property
    def coupled(self):
        return 0

    def modulus(self, bounds):
        return 1.0

    def mirror(self, x):
        return x / torch.sqrt(1 - x * x)

    def unmirror(self, y):
        return y / torch.sqrt(1 + y * y)

    def interior(self, x):
        return x.abs() < 1

    def transport(self, before, after, w):
        return ((1 + before * before) / (1 + after * after)) ** 1.5 * w


class WrongInverse(Hellinger):
    def unmirror(self, y):
        return y / torch.sqrt(1 + 1.01 * y * y)


class HalfValue(Hellinger):
    def summands(self, x):
        return 0.5 * super().summands(x)


class TurnedDistance(Hellinger):
    def distance(self, x, z):
        return super().distance(z, x)


class WrongMetric(Hellinger):
    def metric(self, y, v):
        return v / (1 + y * y)


class TurnedTransport(Hellinger):
    def transport(self, before, after, w):
        return super().transport(after, before, w)


class LargeModulus(Hellinger):
    def modulus(self, bounds):
        return 1.5


class CentreOutside(Hellinger):
    def centre(self, like):
        return torch.full_like(like, torch.inf)


class MixedValues(Hellinger):
    def values(self, x, batch):
        return super().values(x, batch).mean() * torch.ones(x.shape[:batch], dtype=x.dtype)


class DetachedMirror(Hellinger):
    def unmirror(self, y):
        return y.detach() / torch.sqrt(1 + y * y)

    def metric(self, y, v):
        return (1 + y * y) ** -1.5 * v


GEOMETRIES = [
    (WrongInverse, "inverse maps"),
    (HalfValue, "mirror = ∇ψ"),
    (TurnedDistance, "Bregman distance"),
    (WrongMetric, "metric"),
    (TurnedTransport, "transport"),
    (LargeModulus, "modulus"),
    (CentreOutside, "inverse maps"),
    (MixedValues, "batch = elements"),
    (DetachedMirror, "derivatives"),
]
INSIDE = torch.tensor([0.01, -0.6, 0.8, -0.3], dtype=torch.float64)


def test_a_right_geometry_passes():
    report = check_geometry(Hellinger(), INSIDE)
    assert None not in [law.value for law in report.laws]


@pytest.mark.parametrize(("fault", "law"), GEOMETRIES, ids=lambda p: getattr(p, "__name__", None))
def test_faults_of_geometries(fault, law):
    with broken(law):
        check_geometry(fault(), INSIDE)


# --- algorithms -----------------------------------------------------------------------------------


class Momentum(NamedTuple):
    x: torch.Tensor
    previous: torch.Tensor
    step: torch.Tensor


@dataclass(frozen=True)
class HeavyBall(lg.Algorithm):
    """Forward–backward steps with momentum, for a Composite."""

    beta: float = 0.3

    def init(self, problem, x0):
        x = problem.start() if x0 is None else x0
        step = 1 / torch.as_tensor(problem.smooth.lipschitz())
        return Momentum(x, x, self.along(step, x))

    def along(self, step, x):
        return step.reshape(*step.shape, *(1,) * (x.ndim - step.ndim)) if step.ndim else step

    def step(self, problem, state):
        forward = state.x - state.step * problem.smooth.grad(state.x)
        inertia = self.beta * (state.x - state.previous)
        return Momentum(problem.nonsmooth.prox(forward + inertia, state.step), *state[::2])

    def solution(self, state):
        return state.x


class WritesItsState(HeavyBall):
    def step(self, problem, state):
        state.previous.mul_(0.5)
        return super().step(problem, state)


class WritesItsProblem(HeavyBall):
    def step(self, problem, state):
        problem.smooth.b.mul_(0.999)
        return super().step(problem, state)


class Remembers(HeavyBall):
    def step(self, problem, state):
        calls = self.__dict__.get("calls", 0) + 1
        object.__setattr__(self, "calls", calls)
        after = super().step(problem, state)
        return after._replace(x=after.x + 1e-9 * calls)


class OtherFixedPoint(HeavyBall):
    def fixed_point_map(self, state):
        return self, state._replace(x=1.001 * state.x)


class OldSteps(HeavyBall):
    def resume(self, problem, state):
        return state._replace(previous=state.x, step=3 * state.step)


class ForgetsMomentum(HeavyBall):
    def proceed(self, problem, state):
        return self.init(problem, state.x)


class OneRestartForAll(HeavyBall):
    """Drops the momentum of all elements where that of one of them points uphill."""

    def step(self, problem, state):
        move = state.x - state.previous
        uphill = ((problem.smooth.grad(state.x) * move).sum(-1) > 0).any()
        previous = torch.where(uphill, state.x, state.previous)
        return super().step(problem, state._replace(previous=previous))


ALGORITHMS = [
    (WritesItsState, "pure step"),
    (WritesItsProblem, "pure step"),
    (Remembers, "pure step"),
    (OtherFixedPoint, "fixed point"),
    (OldSteps, "fresh start"),
    (ForgetsMomentum, "going on"),
]


def lasso():
    return lg.Composite(lg.LeastSquares(A, b.clone()), lg.L1(0.3))


def test_a_right_algorithm_passes():
    report = check_algorithm(HeavyBall(), lasso())
    assert [law.value is None for law in report.laws] == [False] * 4 + [True] * 2


@pytest.mark.parametrize(("fault", "law"), ALGORITHMS, ids=lambda p: getattr(p, "__name__", None))
def test_faults_of_algorithms(fault, law):
    with broken(law):
        check_algorithm(fault(), lasso())


def test_a_batch_whose_elements_see_each_other():
    data = torch.stack([b, -2 * b, randn(7, seed=6)])
    whole = lg.Composite(lg.LeastSquares(A, data), lg.L1(0.3))
    singles = [lg.Composite(lg.LeastSquares(A, row), lg.L1(0.3)) for row in data]
    report = check_algorithm(HeavyBall(0.8), whole, singles=singles)
    assert None not in [law.value for law in report.laws]
    with broken("separate elements"):
        check_algorithm(OneRestartForAll(0.8), whole)
    swapped = [singles[1], singles[0], singles[2]]
    with broken("batch = elements"):
        check_algorithm(HeavyBall(0.8), whole, singles=swapped)


# --- gradients ------------------------------------------------------------------------------------


def test_gradients_right_and_wrong():
    theta = weight().requires_grad_()

    def problem(w):
        return lg.Composite(lg.LeastSquares(A, b), lg.L1(w))

    def check(strategy, make=problem, parameters=(theta,)):
        return check_gradient(make, lg.ForwardBackward(), strategy, torch.sum, parameters)

    before = theta.detach().clone()
    assert check(lg.Implicit(lg.GMRES(tol=1e-10)))["gradient"] < 1e-6
    check(lg.Unroll())
    assert torch.equal(theta, before)
    with broken("gradient"):
        check(lg.Unroll(last=2))
    scale = torch.ones(4, dtype=torch.float64, requires_grad=True)
    with broken("gradient"):
        check(lg.Unroll(), lambda w, s: problem(w * s.detach()), (theta, scale))
    with pytest.raises(lg.errors.InputError, match="leaves"):
        check(lg.Unroll(), parameters=(theta * 1,))
    with pytest.raises(lg.errors.InputError, match="float64"):
        check(lg.Unroll(), parameters=(torch.tensor(1.0, requires_grad=True),))


@pytest.mark.filterwarnings("error")
def test_laws_of_learned_classes_are_measured_in_silence():
    """Values of a function with a parameter that records gradients are read all the same."""
    weight = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    check_function(lg.L1(weight), X)
    check_prox(lg.L1(weight), lg.Euclidean(), X)
