"""Total generalised variation in the layer, against Clarabel and what it must keep."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import legato as lg
from draws import crandn, rand, randn
from legato.errors import InputError
from legato.nn import TGV, TV, DeepinvPrior, Reconstruction, ReconstructionOutput, WeightMap
from legato.nn.reconstruction.over_fields import Lifted, OfImage
from legato.testing import check_prox

D, E = lg.Differences(), lg.SymmetrisedGradient()
KERNEL = torch.tensor([[0.0, 0.2, 0.0], [0.1, 0.4, 0.1], [0.0, 0.1, 0.1]], dtype=torch.float64)
BLUR = lg.Blur(KERNEL)
PLAIN = lg.Identity()
SHAPE = (5, 6)
Y = rand(*SHAPE, seed=3) + 0.3 * torch.arange(6)
SLOPES, BENDS = 0.1 + 0.05 * rand(*SHAPE, seed=4), 0.06 + 0.1 * rand(*SHAPE, seed=5)


def matrix_of(operator: lg.Operator, like: Tensor) -> Any:
    basis = torch.eye(like.numel(), dtype=like.dtype).reshape(-1, *like.shape)
    return torch.stack([operator(e).flatten() for e in basis], 1).numpy()


def truth(
    y: Tensor, slope: Any, bend: Any, operator: lg.Operator = PLAIN, *, ridge: float = 0.0,
    box: tuple[float, float] | None = None,
) -> tuple[Tensor, float]:  # fmt: skip
    """The image, and the energy, by Clarabel on the matrices of the operators."""
    n = y.numel()
    parts = 2 if y.is_complex() else 1
    data = torch.view_as_real(y).unbind(-1) if parts == 2 else (y,)
    like = data[0]
    xs, vs = ([cp.Variable(k) for _ in range(parts)] for k in (n, 2 * n))
    both = zip(xs, vs, strict=True)
    slopes = [cp.reshape(matrix_of(D, like) @ x - v, (2, n), order="C") for x, v in both]
    bends = [cp.reshape(matrix_of(E, D(like)) @ v, (3, n), order="C") for v in vs]
    one, two = (np.broadcast_to(w, y.shape).flatten() for w in (slope, bend))
    A = matrix_of(operator, like)
    energy = one @ cp.norm(cp.vstack(slopes), axis=0) + two @ cp.norm(cp.vstack(bends), axis=0)
    for x, part in zip(xs, data, strict=True):
        energy += 0.5 * cp.sum_squares(A @ x - part.flatten().numpy())
        energy += ridge / 2 * cp.sum_squares(x)
    bounds = [] if box is None else [xs[0] >= box[0], xs[0] <= box[1]]
    problem = cp.Problem(cp.Minimize(energy), bounds)
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-9)
    problem.solve(solver=cp.CLARABEL, **tight)
    found = [torch.from_numpy(x.value).reshape(y.shape) for x in xs]
    return (torch.complex(*found) if parts == 2 else found[0]), float(problem.value)


def layer_of(prior: Any, operator: lg.Operator = PLAIN, **settings: Any) -> Reconstruction:
    return Reconstruction(operator, prior, **{"iterations": 2000, **settings}).double()


@torch.no_grad()
def solved(layer: Reconstruction, y: Tensor, x0: Any = None) -> ReconstructionOutput:
    """Without a graph of thousands of iterations."""
    return layer.solve(y, x0=x0)


# --- the solution ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "settings"),
    [
        (PLAIN, {}),
        (PLAIN, {"box": (0.4, 1.6)}),
        (BLUR, {"ridge": 0.1, "balance": 2.0}),
        (BLUR, {"box": (0.4, 1.6), "balance": 2.0}),
    ],
    ids=["denoising", "denoising in a box", "deblurring", "deblurring in a box"],
)
@pytest.mark.parametrize("weights", [(0.12, 0.1), (SLOPES, BENDS)], ids=["numbers", "maps"])
def test_the_solution_is_that_of_a_conic_solver(
    operator: lg.Operator, settings: Any, weights: Any
) -> None:
    terms = {name: settings[name] for name in ("box", "ridge") if name in settings}
    image, energy = truth(Y, *weights, operator, **terms)
    record = solved(layer_of(TGV(*weights), operator, **settings), Y[None, None])
    assert float(record.solution.objective) == pytest.approx(energy, rel=2e-5)
    torch.testing.assert_close(record.x[0, 0], image, atol=2e-3, rtol=0)
    missing = float(record.solution.objective) - energy
    assert missing <= float(record.gap) + 1e-6
    assert float(record.gap) < 1e-2
    if record.modulus > 0:
        assert float((record.x[0, 0] - image).norm()) <= float(record.error) + 1e-4


def test_complex_images() -> None:
    """The moduli of slopes count both parts together."""
    y = crandn(*SHAPE, seed=6)
    image, energy = truth(y, 0.4, 0.3)
    record = solved(Reconstruction(PLAIN, TGV(0.4, 0.3).double(), iterations=1500), y[None, None])
    assert float(record.solution.objective) == pytest.approx(energy, rel=1e-6)
    torch.testing.assert_close(record.x[0, 0], image, atol=1e-5, rtol=0)
    assert record.field is not None
    assert record.field.shape == (1, 1, 2, *SHAPE)
    assert record.field.is_complex()
    assert float(record.gap) < 1e-4


def test_affine_images_cost_nothing() -> None:
    """To rounding, whatever the weights, up to the edges; total variation moves them."""
    i, j = torch.meshgrid(*(torch.arange(n).double() for n in (9, 7)), indexing="ij")
    ramp = (0.3 * i - 0.2 * j + 1)[None, None]
    record = solved(layer_of(TGV(3.0, 5.0), iterations=6000, balance=0.05), ramp)
    torch.testing.assert_close(record.x, ramp, atol=1e-7, rtol=0)
    assert float(record.solution.objective) < 1e-6
    moved = layer_of(TV(3.0), iterations=500)(ramp).detach()
    assert float((moved - ramp).abs().max()) > 0.5


def test_for_large_bending_only_affine_parts_are_free() -> None:
    """λ₀ → ∞: total variation of what is left of x beside its best plane."""
    image, plane = cp.Variable(Y.numel()), cp.Variable(2)
    i, j = torch.meshgrid(*(torch.arange(n).double() for n in SHAPE), indexing="ij")
    axes = torch.stack((i.flatten(), j.flatten()), 1).numpy()
    slopes = cp.reshape(matrix_of(D, Y) @ (image - axes @ plane), (2, Y.numel()), order="C")
    energy = 0.5 * cp.sum_squares(image - Y.flatten().numpy())
    problem = cp.Problem(cp.Minimize(energy + 0.12 * cp.sum(cp.norm(slopes, axis=0))))
    problem.solve(solver=cp.CLARABEL)
    found = layer_of(TGV(0.12, 30.0), iterations=4000)(Y[None, None]).detach()[0, 0]
    torch.testing.assert_close(found, torch.from_numpy(image.value).reshape(SHAPE), atol=1e-4,
                               rtol=0)  # fmt: skip


def test_a_batch_is_its_singles_in_units_of_their_own() -> None:
    unit = torch.tensor([1.0, 255.0, 1e-3]).double()[:, None, None, None]
    y = unit * (torch.stack((Y, Y.flip(0), 2 * Y)) + 0.1 * randn(3, *SHAPE))[:, None]
    prior = TGV(0.12 * unit.expand(3, 1, *SHAPE), 0.1 * unit.expand(3, 1, *SHAPE))
    together = solved(layer_of(prior, BLUR, iterations=60), y)
    assert together.gap.shape == (3, 1)
    for k in range(3):
        alone = layer_of(TGV(*(0.12 * unit[k, 0], 0.1 * unit[k, 0])), BLUR, iterations=60)
        one = solved(alone, y[k : k + 1])
        torch.testing.assert_close(one.x / unit[k], together.x[k : k + 1] / unit[k])
        torch.testing.assert_close(one.gap[0], together.gap[k], rtol=1e-6, atol=0)


def test_counts_of_a_projection_have_a_dual_variable_of_their_own() -> None:
    K = lg.Radon(torch.linspace(0, torch.pi, 7)[:-1], 8)
    image = (torch.arange(8.0).double() / 8).expand(1, 1, 8, 8)
    counts = torch.poisson(400 * K(image), generator=torch.Generator().manual_seed(0)) / 400
    prior, settings = TGV(0.01, 0.02), {"data": lg.KullbackLeibler, "box": (0, 5), "balance": 3.0}
    record = solved(layer_of(prior, K, iterations=800, **settings), counts)
    shorter = solved(layer_of(prior, K, iterations=150, **settings), counts)
    missing = shorter.solution.objective - record.solution.objective
    assert bool((missing <= shorter.gap).all())
    assert bool(torch.isfinite(shorter.gap).all())
    assert bool((record.gap < 0.1 * shorter.gap).all())
    assert (record.x - image).norm() < 0.2 * image.norm()


# --- derivatives ----------------------------------------------------------------------------------


def slopes_of_the_truth(w: Tensor) -> dict[str, Tensor]:
    """⟨w, x⟩ by differences of Clarabel's solutions, along log λ of all pixels and of two."""
    found: dict[str, list[float]] = {"weight": [], "bending": []}
    step = 1e-4
    for name, moved in found.items():
        for place in (None, 8, 21):
            along = torch.zeros(Y.numel()).double()
            along[slice(None) if place is None else place] = step
            factor = along.reshape(SHAPE).exp()
            ends = []
            for f in (factor, 1 / factor):
                one, two = (SLOPES * f, BENDS) if name == "weight" else (SLOPES, BENDS * f)
                ends.append(float((w * truth(Y, one.numpy(), two.numpy())[0]).sum()))
            moved.append((ends[0] - ends[1]) / (2 * step))
    return {name: torch.tensor(values).double() for name, values in found.items()}


STRATEGIES = [
    lg.Unroll(), lg.Unroll(last=1000), lg.FixedPoint(2000), lg.Implicit(), lg.Implicit(lg.Direct()),
    lg.Piggyback(),
]  # fmt: skip


def test_derivatives_are_those_of_differences_of_a_conic_solver() -> None:
    """By every strategy, for maps of weights; λ₀ counts where slopes change."""
    w = randn(*SHAPE, seed=9)
    true = slopes_of_the_truth(w)
    assert float(true["bending"].abs().max()) > 1e-3
    for gradient in STRATEGIES:
        prior = TGV(SLOPES, BENDS)
        layer = layer_of(prior, gradient=gradient, iterations=2000, balance=0.3)
        (w * layer(Y[None, None])[0, 0]).sum().backward()
        for name, numbers in true.items():
            slope = getattr(prior, name).log.grad
            found = torch.stack((slope.sum(), *slope.flatten()[[8, 21]]))
            torch.testing.assert_close(found, numbers, atol=3e-4, rtol=1e-3, msg=repr(gradient))


def test_weights_that_a_network_reads_off_the_image_learn() -> None:
    torch.manual_seed(0)
    prior = TGV(WeightMap(weight=0.1, width=4), WeightMap(weight=0.1, width=4))
    layer = layer_of(prior, BLUR, iterations=40, gradient=lg.Unroll())
    y = BLUR(rand(2, 1, 8, 8, seed=1))
    layer(y).square().sum().backward()
    for maps in (prior.weight, prior.bending):
        parameter = maps.layers[-1].weight
        found, at = float(parameter.grad.flatten()[1]), parameter.data.view(-1)
        ends = []
        with torch.no_grad():
            for step in (1e-6, -2e-6):
                at[1] += step
                ends.append(float(layer(y).square().sum()))
            at[1] += 1e-6
        # The balance that is found for each image is derived as well.
        assert found == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-8)


# --- the layer's other promises -------------------------------------------------------------------


def test_gaps_bound_what_is_missing_from_the_first_iterations_on() -> None:
    y = (torch.stack((Y, Y.flip(1))) + 0.1 * randn(2, *SHAPE))[:, None]
    for settings in ({"box": (0.0, 2.0)}, {"ridge": 0.2}, {}):
        operator = BLUR if settings else PLAIN
        best = [truth(one[0], SLOPES, BENDS, operator, **settings) for one in y]  # type: ignore[arg-type]
        for iterations in (1, 10, 100):
            layer = layer_of(TGV(SLOPES, BENDS), operator, iterations=iterations, **settings)
            record = solved(layer, y)
            for k, (image, energy) in enumerate(best):
                missing = float(record.solution.objective[k]) - energy
                assert missing <= float(record.gap[k]) + 1e-6
                distance = float((record.x[k, 0] - image).norm())
                assert distance <= float(record.error[k]) + 1e-4
            assert bool(torch.isfinite(record.gap).all())


def test_starts() -> None:
    """An image, a state, and the record's own variable; what belongs elsewhere is refused."""
    layer = layer_of(TGV(SLOPES, BENDS), iterations=300)
    done = solved(layer, Y[None, None])
    short = layer_of(TGV(SLOPES, BENDS), iterations=3)
    cold = solved(short, Y[None, None]).gap
    for start in (done.solution.state, done.solution.x):
        warm = solved(short, Y[None, None], x0=start)
        assert float(warm.gap) < 0.5 * float(cold)
    assert float(solved(short, Y[None, None], x0=done.solution.state).gap) < 1e-2 * float(cold)
    again = solved(short, Y[None, None], x0=Y[None, None])
    torch.testing.assert_close(again.x, short(Y[None, None]))  # the first image of denoising is y
    for wrong in (Y.T[None, None], Y[None, None].float(), Y[None, None, None]):
        with pytest.raises(InputError, match="x0"):
            solved(short, Y[None, None], x0=wrong)
    others = solved(layer_of(TV(0.1), iterations=3), Y[None, None]).solution.state
    with pytest.raises(InputError, match="one tensor, but the problem's variable is a tuple"):
        solved(short, Y[None, None], x0=others)


def test_an_engine_and_a_diagonal_preconditioner_change_nothing() -> None:
    prior = TGV(SLOPES, BENDS)
    layer = layer_of(prior, iterations=25)
    plain = layer(Y[None, None])
    with lg.Replayed():
        torch.testing.assert_close(layer(Y[None, None]), plain)
    image, _ = truth(Y, SLOPES, BENDS)
    for algorithm in (lg.PrimalDual(precondition=True), lg.PrimalDual(balance=0.5)):
        found = layer_of(prior, algorithm=algorithm)(Y[None, None]).detach()[0, 0]
        torch.testing.assert_close(found, image, atol=1e-4, rtol=0)


def test_laws_of_the_parts() -> None:
    """A prox of the image leaves the field; the norm is that of both parts together."""
    box = lg.Box(-0.5, 0.5) + lg.SquaredDistance(Y[:4, :4], 0.3)
    check_prox(OfImage(box), lg.Euclidean(), randn(3, 4, 4), 0.7)
    z = randn(3, 60, 60)
    found = float(lg.operators.lanczos_norm(Lifted(), z)) / 1.01
    assert found <= float(Lifted().norm(z)) <= 1.01 * found


def test_it_is_a_prior_of_deepinv_and_an_inner_problem() -> None:
    prior = TGV(SLOPES, BENDS).double()
    wrapped = DeepinvPrior(prior, iterations=2000)
    image, _ = truth(Y, 0.5 * SLOPES, 0.5 * BENDS)
    found = wrapped.prox(Y[None, None], gamma=0.5).detach()[0, 0]
    torch.testing.assert_close(found, image, atol=1e-4, rtol=0)
    with pytest.raises(InputError, match="itself a minimum"):
        wrapped(Y[None, None])

    layer = layer_of(prior, iterations=2000, tol=1e-6, gradient=lg.Implicit())
    target = layer_of(TGV(0.03, 0.02))(Y[None, None]).detach()
    done = lg.fit(
        lambda inner: (layer.solve(Y[None, None], inner=inner).x - target).square().mean(),
        list(prior.parameters()), lg.optim.IPiano, steps=3, inexact=lg.bilevel.MAID(),
    )  # fmt: skip
    losses = [record.loss for record in done.history.records]
    assert losses[-1] < losses[0]


class Both(torch.nn.Module):
    """Terms of one's own beside it."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, image: Tensor) -> lg.Function:
        return sum(self.parts[1:], self.parts[0])


def test_terms_beside_it_count() -> None:
    R = TGV(0.12, 0.1).double()(Y[None, None])
    image, energy = truth(Y, 0.24, 0.2, ridge=0.3)
    record = solved(layer_of(Both(lg.SquaredNorm(0.3), 2.0 * R), balance=0.1), Y[None, None])
    assert float(record.solution.objective) == pytest.approx(energy, rel=1e-6)
    torch.testing.assert_close(record.x[0, 0], image, atol=1e-4, rtol=0)
    beside = layer_of(Both(lg.L1(0.2) @ lg.Wavelet(1), R), balance=0.3)
    y = Y[None, None, :4, :4]
    by_parts = y[0, 0]
    u, v = lg.operators.parts(by_parts, D(by_parts))
    same = lg.SquaredDistance(by_parts) @ u + lg.L1(0.2) @ lg.Wavelet(1) @ u
    same = same + lg.GroupL1(0.12, dim=-3) @ (D @ u - v) + lg.GroupL1(0.1, dim=-3) @ E @ v
    best = lg.solve(same, stop=lg.Stop(20000, tol=1e-9))
    assert float(solved(beside, y).solution.objective) == pytest.approx(
        float(best.objective), rel=1e-5
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: TGV(-1.0), "positive"),
        (lambda: TGV(0.1, torch.tensor([1.0, 0.0])), "positive"),
        (lambda: layer_of(TGV(torch.ones(3, 3)))(Y[None, None]), "weight"),
        (lambda: layer_of(TGV(0.1))(Y.flatten()[:4]), "at least 2 axes"),
        (lambda: layer_of(TGV(0.1))(torch.full((1, 1, 4, 4), torch.nan).double()), "NaN"),
        (lambda: layer_of(Both(*2 * (TGV().double()(Y),)))(Y), "a field of its own"),
        (lambda: lg.split(TGV().double()(Y) + lg.SquaredDistance(Y)), "beside the image"),
        (lambda: layer_of(Both(TGV().double()(Y) @ BLUR))(Y[None, None]), "beside the image"),
    ],
)
def test_bad_input_is_refused_in_words(wrong: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        wrong()
