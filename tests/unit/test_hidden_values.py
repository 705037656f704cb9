"""Where torch hides values or records nothing: the right numbers, or a refusal in words."""

import pytest
import torch

import legato as lg
from error_words import raises
from legato import errors
from legato.nn import NonNegativeLeastSquares, Potts, TotalVariation
from makers import randn

A, DATA = randn(6, 4, seed=1), randn(6, seed=2)
IMAGES = randn(3, 1, 2, 5, 6, seed=4)
STEP = 0.5 / float(torch.linalg.matrix_norm(A, 2)) ** 2
PATHS = {
    "checkpoint": lg.Unroll(checkpoint=3),
    "last, checkpoint": lg.Unroll(last=4, checkpoint=3),
    "tol": lg.Unroll(tol=1e-9),
}


def lasso(data):
    return lg.LeastSquares(A, data) + lg.L1(0.1)


def solved(data, gradient=None, step=STEP, stop=None):
    stop = lg.Stop(20) if stop is None else stop
    return lg.solve(lasso(data), lg.ForwardBackward(step), gradient=gradient, stop=stop).x


# --- torch.func -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev])
@pytest.mark.parametrize("path", PATHS)
def test_a_backward_pass_of_autograd_is_no_transform(path, transform):
    word = "tol" if path == "tol" else "checkpoint"
    with raises(errors.GradientError, rf"Unroll\({word}=", r"torch\.func", r"Unroll\(\)"):
        transform(lambda data: solved(data, PATHS[path]).sum())(DATA)


@pytest.mark.parametrize("path", PATHS)
def test_transforms_without_a_backward_pass(path):
    h, direction = 1e-6, randn(6, seed=3)
    tangent = torch.func.jvp(lambda d: solved(d, PATHS[path]), (DATA,), (direction,))[1]
    ends = [solved(DATA + s * h * direction) for s in (1, -1)]
    if path == "last, checkpoint":  # what is cut off is a constant there too
        assert bool(torch.isfinite(tangent).all())
    else:
        torch.testing.assert_close(tangent, (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-8)
    both = torch.func.vmap(lambda d: solved(d, PATHS[path]))(torch.stack([DATA, 2 * DATA]))
    torch.testing.assert_close(both, torch.stack([solved(DATA), solved(2 * DATA)]))


def test_a_checkpoint_around_a_callable_inside_vmap():
    def run(data):
        f = lg.Smooth(lambda x: 0.5 * ((A @ x - data) ** 2).sum())
        start = torch.zeros(4).double()
        way = lg.Unroll(checkpoint=3)
        return lg.solve(f, lg.ForwardBackward(STEP), start, gradient=way, stop=lg.Stop(20)).x

    both = torch.func.vmap(run)(torch.stack([DATA, 2 * DATA]))
    torch.testing.assert_close(both, torch.stack([run(DATA), run(2 * DATA)]))


def test_tangents_that_are_carried_cannot_be_transformed():
    def run(data):
        return solved(data, lg.Forward(data)).sum()

    with raises(errors.GradientError, "Forward", r"torch\.func", r"Unroll\(\)"):
        torch.func.grad(run)(DATA)


HIDDEN = {
    "tolerance": lambda d: solved(d, stop=lg.Stop(20, tol=1e-6)),
    "backtracking": lambda d: solved(d, step=lg.Backtracking()),
    "backtracking, growing": lambda d: solved(d, step=lg.Backtracking(grow=2.0)),
    "Newton": lambda d: lg.solve(lg.LeastSquares(A, d) + lg.SquaredNorm(0.1), lg.Newton()).x,
    "a layer's tolerance": lambda d: NonNegativeLeastSquares(tol=1e-6)(A, d),
    "a layer's line search": lambda d: NonNegativeLeastSquares(geometry=lg.Entropy())(
        A.abs(), d.abs()
    ),
    "norm": lambda d: (
        lg.solve(
            lg.SquaredDistance(IMAGES[0])
            + lg.L1(0.1) @ lg.Convolution(d[:4].reshape(1, 1, 2, 2).expand(1, 2, 2, 2), "mirror")
        ).x
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_decisions_by_values_that_vmap_hides(name):
    with raises(errors.InputError, "vmap hides", "leading axes of the data are batches"):
        torch.func.vmap(HIDDEN[name])(torch.stack([DATA, 2 * DATA]))


def test_other_errors_inside_vmap_stay_what_they_are():
    def wrong(data):
        f = lg.Smooth(lambda x: (x @ torch.zeros(3, 3).double() - data).sum())
        return lg.solve(f, lg.ForwardBackward(0.1), torch.zeros(4).double()).x

    with pytest.raises(RuntimeError, match=r"size|shape"):
        torch.func.vmap(wrong)(torch.stack([DATA, DATA]))


LAYERS = {
    "Potts": lambda image, w: Potts(12, kernel="numba")(image, w),
    "TotalVariation": lambda image, w: TotalVariation(12, kernel="numba")(image, w),
    "TotalVariation, last": lambda image, w: TotalVariation(
        12, kernel="numba", gradient=lg.Unroll(last=5)
    )(image, w),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_kernels_inside_vmap(layer):
    run, weights = LAYERS[layer], torch.tensor([0.2, 0.3, 0.4]).double()
    expected = torch.stack([run(image, w) for image, w in zip(IMAGES, weights, strict=True)])
    torch.testing.assert_close(torch.func.vmap(run)(IMAGES, weights), expected)
    turned = torch.func.vmap(run, in_dims=(2, 0))(IMAGES.movedim(0, 2), weights)
    torch.testing.assert_close(turned, expected)
    one = torch.func.vmap(run, in_dims=(0, None))(IMAGES, weights[0])
    torch.testing.assert_close(one, torch.stack([run(image, weights[0]) for image in IMAGES]))


# --- inference mode -------------------------------------------------------------------------------


def energy(x):
    return torch.cosh(x).sum() + 0.5 * ((A @ x - DATA) ** 2).sum()


class Quartic(lg.Function):
    """x⁴, with a gradient and no Hessian."""

    def summands(self, x):
        return x**4

    def grad(self, x):
        return 4 * x**3


@pytest.fixture(params=["inside", "a tensor made inside"])
def start(request):
    """A point, and inference mode around the test or around the point alone."""
    with torch.inference_mode():
        inside = randn(4, seed=5)
        if request.param == "inside":
            yield inside
            return
    yield inside


def test_a_callable_in_inference_mode(start):
    f = lg.Smooth(energy)
    expected = torch.sinh(start) + A.mT @ (A @ start - DATA)
    torch.testing.assert_close(f.grad(start), expected)
    torch.testing.assert_close(f.hessian(start), torch.diag(torch.cosh(start)) + A.mT @ A)
    step = lg.ForwardBackward(0.1 * STEP)
    for algorithm in (step, lg.Newton()):
        x = lg.solve(f, algorithm, start, stop=lg.Stop(2000, tol=1e-12)).x
        slope = torch.sinh(x) + A.mT @ (A @ x - DATA)
        assert float(slope.abs().max()) < 1e-6


def test_a_hessian_in_inference_mode_is_not_zero(start):
    torch.testing.assert_close(Quartic().hessian(start), torch.diag(12 * start**2))


def test_data_made_in_inference_mode():
    with torch.inference_mode():
        scale = torch.full((4,), 2.0).double()
        f = lg.Smooth(lambda x: (scale * x**2).sum())
        found = f.grad(torch.ones(4).double())
    torch.testing.assert_close(found, 2 * scale)


def test_a_coupled_batch_is_refused_in_inference_mode():
    f = lg.Smooth(lambda x: (x[0] * x[1]).sum())
    with torch.inference_mode(), raises(errors.InputError, "couples the leading axes"):
        f.hessian(torch.ones(2, 3))


# --- a checkpoint around a Hessian ----------------------------------------------------------------


def test_checkpoints_of_a_hessian_by_autograd():
    """Second derivatives taken inside a segment use up their graph there and then."""
    y, c = 0.1 * randn(2, 3, 6, seed=6), randn(2, 3, 4, seed=7)

    def value(w, K, way=None):
        f = (
            lg.Smooth(lambda x: w * torch.logsumexp(x - c, -1, keepdim=True), coupled=1)
            + lg.SquaredDistance(y) @ (lg.Identity() @ lg.Dense(K))
            + lg.SquaredNorm(0.3)
            + lg.NonNegative().smoothed(0.2)
        )
        x0 = torch.full((2, 3, 4), 0.5).double()
        return lg.solve(f, lg.Newton(), x0, gradient=way, stop=lg.Stop(30, tol=1e-12)).x

    w, h, direction = torch.tensor(0.7).double(), 1e-6, randn(6, 4, seed=8)
    weights = value(w, A).cos()
    by_w = ((value(w + h, A) - value(w - h, A)) * weights).sum() / (2 * h)
    ends = value(w, A + h * direction), value(w, A - h * direction)
    by_K = ((ends[0] - ends[1]) * weights).sum() / (2 * h)
    for interval in ("sqrt", 2, 5):
        leaves = w.clone().requires_grad_(), A.clone().requires_grad_()
        x = value(*leaves, lg.Unroll(checkpoint=interval))
        slope_w, slope_K = torch.autograd.grad((x * weights).sum(), leaves)
        torch.testing.assert_close(slope_w, by_w, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close((slope_K * direction).sum(), by_K, rtol=1e-6, atol=1e-8)
