"""The Potts layer as a module: shapes, weights, steps, states, gradients, and how torch sees it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import legato as lg
from legato.nn import ContrastWeights, Potts, PottsState, Scale
from legato.nn.fused import choice
from legato.nn.neighbourhood import offsets
from legato.nn.potts.layer import LONG_SOLVE
from legato.nn.potts.model import model
from makers import rand, randn

KERNELS = ["reference", "numba"]
if torch.cuda.is_available():
    KERNELS.append("triton")
each_kernel = pytest.mark.parametrize("kernel", KERNELS)


def place(kernel: str, tensor: Tensor) -> Tensor:
    return tensor.cuda() if kernel == "triton" else tensor


def gradients(layer: Potts, *inputs: Tensor, state: PottsState | None = None) -> list[Tensor]:
    """Of a loss that sees every entry of the probabilities and of the dual differently."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    output = layer.solve(*leaves, state=state)
    return list(torch.autograd.grad(loss(output.x, output.y), leaves))


def loss(u: Tensor, p: Tensor) -> Tensor:
    total = u.new_zeros(())
    for t in (u, p):
        slope = torch.cos(torch.arange(t.numel(), dtype=t.dtype, device=t.device)).reshape(t.shape)
        total = total + (slope * t + 0.5 * t * t).sum()
    return total


def assert_all_close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for got, right in zip(found, expected, strict=True):
        torch.testing.assert_close(got, right, rtol=tolerance, atol=tolerance)


# --- shapes and outputs ---------------------------------------------------------------------------


@each_kernel
@pytest.mark.parametrize(
    ("spatial", "neighbours", "directions"),
    [((4, 5), 4, 2), ((4, 5), 8, 4), ((3, 4, 5), 4, 3), ((1, 6), 4, 2)],
)
def test_shapes(kernel: str, spatial: tuple[int, ...], neighbours: int, directions: int) -> None:
    cost = place(kernel, randn(2, 3, *spatial))
    output = Potts(5, neighbours=neighbours, kernel=kernel).solve(cost)
    assert output.x.shape == output.log_probabilities.shape == cost.shape
    assert output.y.shape == (2, 3, directions, *spatial)
    assert output.state.mirror.shape == cost.shape
    assert output.state.dual.shape == output.y.shape
    assert output.gap.shape == output.energy.shape == (2,)
    assert output.kernel == kernel
    torch.testing.assert_close(output.x.sum(1), torch.ones_like(cost[:, 0]))
    assert bool((output.y.abs() <= 1).all())
    torch.testing.assert_close(output.log_probabilities.exp(), output.x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_the_cost(dtype: torch.dtype) -> None:
    output = Potts(3).solve(randn(1, 2, 3, 3).to(dtype), 0.5)
    for t in (output.x, output.log_probabilities, output.y, *output.state):
        assert t.dtype == dtype


@pytest.mark.parametrize(
    "options", [{}, {"tau": 0.3, "sigma": 0.3}, {"max_weight": 9.0, "epsilon": 0.1}], ids=str
)
def test_a_batch_is_its_images(options: Any) -> None:
    """With derived steps too, however large the weights of the others are."""
    cost, weights = randn(3, 4, 5, 6), rand(3, 1, 2, 5, 6, seed=1)
    layer = Potts(20, **options)
    if "tau" not in options:
        weights = weights * torch.tensor([0.1, 1.0, 8.0]).double()[:, None, None, None, None]
    together = layer.solve(cost, weights).x
    alone = [layer.solve(c[None], w[None]).x for c, w in zip(cost, weights, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_mean_or_last_iterate() -> None:
    cost = randn(1, 3, 4, 5)
    last = [Potts(n).solve(cost, 0.4).x for n in (1, 2, 3, 4)]
    averaged = Potts(4, average=True).solve(cost, 0.4)
    torch.testing.assert_close(averaged.x, torch.stack(last).mean(0))
    torch.testing.assert_close(averaged.log_probabilities, torch.stack(last).mean(0).log())


def test_entropy_moves_the_solution_inside() -> None:
    """Without coupling the minimiser of ⟨c, u⟩ + ε Σ u log u is softmax(−c/ε)."""
    cost = randn(1, 3, 4, 5)
    output = Potts(200, epsilon=0.5).solve(cost, 0.0)
    torch.testing.assert_close(output.x, torch.softmax(-cost / 0.5, 1))
    u = output.x
    torch.testing.assert_close(output.energy, (cost * u + 0.5 * u * u.log()).sum()[None])


def test_eight_neighbours_see_the_diagonal() -> None:
    """Weights on the two diagonals alone couple the pixels like a chess board."""
    cost = torch.zeros(1, 2, 3, 3, dtype=torch.float64)
    cost[0, 0, 0, 0] = -4.0
    weights = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64).reshape(1, 1, 4, 1, 1)
    u = Potts(300, neighbours=8).solve(cost, weights).x[0, 0]
    same = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 0, 1]], dtype=torch.bool)
    assert bool((u[same] > 0.99).all())
    torch.testing.assert_close(u[~same], torch.full((4,), 0.5, dtype=torch.float64))


# --- a log-softmax that knows its neighbours ------------------------------------------------------


@each_kernel
@pytest.mark.parametrize("average", [False, True])
def test_the_layer_returns_the_log_probabilities_of_its_record(kernel: str, average: bool) -> None:
    cost = place(kernel, randn(2, 3, 4, 5))
    layer = Potts(8, average=average, kernel=kernel)
    found = layer(cost, 0.4)
    torch.testing.assert_close(found, layer.solve(cost, 0.4).log_probabilities, rtol=0, atol=0)
    torch.testing.assert_close(found.exp().sum(1), torch.ones_like(cost[:, 0]))


@each_kernel
@pytest.mark.parametrize("iterations", [1, 7])
def test_zero_weights_give_a_log_softmax(kernel: str, iterations: int) -> None:
    cost = place(kernel, randn(1, 3, 4, 5))
    expected = torch.log_softmax(-iterations * 0.3 * cost, 1)
    layer = Potts(iterations, tau=0.3, sigma=0.3, kernel=kernel)
    torch.testing.assert_close(layer(cost, 0.0), expected)


@each_kernel
@pytest.mark.parametrize("average", [False, True])
def test_nll_loss_follows(kernel: str, average: bool) -> None:
    cost = place(kernel, randn(2, 3, 4, 5)).requires_grad_()
    target = place(kernel, torch.randint(0, 3, (2, 4, 5)))
    layer = Potts(8, tau=0.3, sigma=0.3, average=average, kernel=kernel)
    value = nn.NLLLoss()(layer(cost, 0.4), target)
    right = -layer.solve(cost, 0.4).x.log().gather(1, target[:, None]).mean()
    torch.testing.assert_close(value, right)
    assert torch.autograd.gradcheck(lambda c: nn.NLLLoss()(layer(c, 0.4), target), cost)


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_log_of_a_mean_is_finite(kernel: str, dtype: torch.dtype) -> None:
    """One saturated pixel, certain and wrong, and one that is not: both learn."""
    cost = torch.tensor([[1e5, 0.3], [0.0, 0.0]], dtype=dtype).reshape(1, 2, 1, 2)
    cost = place(kernel, cost).requires_grad_()
    layer = Potts(50, average=True, kernel=kernel)
    assert bool((layer.solve(cost, 0.0).x == 0).any())
    found = layer(cost, 0.0)
    assert torch.isfinite(found).all()
    (together,) = torch.autograd.grad(-found[:, 0].sum(), cost)
    assert torch.isfinite(together).all()
    assert float(together[0, 0, 0, 0]) > 1
    (alone,) = torch.autograd.grad(-layer(cost, 0.0)[0, 0, 0, 1], cost)
    torch.testing.assert_close(together[..., 1], alone[..., 1])


# --- weights --------------------------------------------------------------------------------------

WEIGHTS: dict[str, Callable[[], Tensor]] = {
    "scalar": lambda: torch.tensor(0.7, dtype=torch.float64),
    "per direction": lambda: rand(1, 1, 2, 1, 1) + 0.1,
    "per pixel and direction": lambda: rand(2, 1, 2, 3, 4) + 0.1,
    "per label": lambda: rand(1, 3, 1, 1, 1) + 0.1,
    "of everything": lambda: rand(2, 3, 2, 3, 4) + 0.1,
}


@each_kernel
@pytest.mark.parametrize("name", WEIGHTS)
def test_derivatives_by_finite_differences(kernel: str, name: str) -> None:
    """Steps are given, because derived ones are constants to autograd."""
    layer = Potts(6, tau=0.3, sigma=0.3, kernel=kernel)
    cost, weights = place(kernel, randn(2, 3, 3, 4)), place(kernel, WEIGHTS[name]())

    def outputs(c: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        output = layer.solve(c, w)
        return output.x, output.log_probabilities, output.y

    inputs = (cost.requires_grad_(), weights.requires_grad_())
    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)


@each_kernel
@pytest.mark.parametrize(
    ("spatial", "options"),
    [
        ((3, 4), {"neighbours": 8}),
        ((2, 3, 3), {}),
        ((3, 4), {"average": True, "epsilon": 0.3}),
    ],
    ids=["8 neighbours", "volume", "mean with entropy"],
)
def test_derivatives_of_every_kind(kernel: str, spatial: tuple[int, ...], options: dict) -> None:
    layer = Potts(5, tau=0.2, sigma=0.25, kernel=kernel, **options)
    edges = len(offsets(len(spatial), options.get("neighbours", 4)))
    cost = place(kernel, randn(1, 3, *spatial)).requires_grad_()
    weights = place(kernel, rand(1, 1, edges, *spatial) + 0.1).requires_grad_()

    def outputs(c: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return layer.solve(c, w).x, layer.solve(c, w).log_probabilities

    assert torch.autograd.gradcheck(outputs, (cost, weights), fast_mode=True)


def test_numbers_none_and_tensors_are_the_same_weights() -> None:
    cost = randn(1, 3, 4, 5)
    layer = Potts(10)
    one = layer.solve(cost).x
    for weights in (1, 1.0, torch.ones((), dtype=cost.dtype), torch.ones(1, 3, 2, 4, 5).double()):
        torch.testing.assert_close(layer.solve(cost, weights).x, one)
    assert not torch.allclose(layer.solve(cost, 0.1).x, one)


@each_kernel
def test_the_cost_of_a_frozen_network(kernel: str) -> None:
    """Gradients of the weights alone, the cost being data."""
    cost, weights = place(kernel, randn(1, 3, 4, 5)), place(kernel, rand(1, 1, 2, 4, 5) + 0.1)
    layer = Potts(8, kernel=kernel)
    both = gradients(layer, cost, weights)
    w = weights.clone().requires_grad_()
    output = layer.solve(cost, w)
    (alone,) = torch.autograd.grad(loss(output.x, output.y), w)
    torch.testing.assert_close(alone, both[1])


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("neighbours", "directions"), [(4, 2), (8, 4)])
def test_steps_from_the_norm(neighbours: int, directions: int) -> None:
    """τ = r/L and σ = 1/(rL) with L = 2√E·max w."""
    cost, weights = randn(1, 3, 4, 5), rand(1, 1, directions, 4, 5)
    L = 2 * math.sqrt(directions) * float(weights.max())
    derived = Potts(10, balance=4.0, neighbours=neighbours)
    given = Potts(10, tau=4.0 / L, sigma=1 / (4.0 * L), neighbours=neighbours)
    torch.testing.assert_close(
        derived.solve(cost, weights).state, given.solve(cost, weights).state, rtol=1e-6, atol=1e-6
    )


def test_derived_steps_are_the_largest_allowed() -> None:
    cost = randn(1, 3, 4, 5)
    step = 1 / (8**0.5 * 2.0)
    Potts(2, tau=step, sigma=step).solve(cost, 2.0)
    with pytest.raises(lg.errors.StepError, match="exceeds 1"):
        Potts(2, tau=1.01 * step, sigma=step).solve(cost, 2.0)


@each_kernel
def test_learned_balance(kernel: str) -> None:
    cost, weights = place(kernel, randn(1, 3, 4, 5)), place(kernel, rand(1, 1, 2, 4, 5))
    layer = Potts(10, balance=3.0, learn_balance=True, kernel=kernel).to(cost)

    def value() -> Tensor:
        output = layer.solve(cost, weights)
        return loss(output.x, output.y)

    (found,) = torch.autograd.grad(value(), layer.log_balance)
    values, h = [], 1e-5
    for shift in (h, -h):
        with torch.no_grad():
            layer.log_balance += shift
            values.append(value())
            layer.log_balance -= shift
    torch.testing.assert_close(found, (values[0] - values[1]) / (2 * h), rtol=1e-6, atol=1e-8)


def test_a_fixed_balance_is_no_parameter() -> None:
    assert not list(Potts(balance=3.0).parameters())
    assert [name for name, _ in Potts(learn_balance=True).named_parameters()] == ["log_balance"]


# --- convergence ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 1e-5), (0.3, 1e-3)])
def test_the_gap_closes(epsilon: float, share: float) -> None:
    cost, weights = randn(2, 3, 5, 6), 0.6 * rand(2, 1, 2, 5, 6)
    gaps = [
        float(Potts(n, epsilon=epsilon).solve(cost, weights).gap.sum()) for n in (10, 100, 2000)
    ]
    assert gaps[0] > gaps[1] > gaps[2] >= -1e-10
    assert gaps[2] < share * gaps[0]


def test_the_gap_bounds_the_energy() -> None:
    cost, weights = randn(1, 3, 5, 6), 0.6 * rand(1, 1, 2, 5, 6)
    best = Potts(3000).solve(cost, weights).energy
    for n in (1, 5, 50):
        rough = Potts(n).solve(cost.requires_grad_(), weights)
        excess = (rough.energy - best).detach()
        assert bool(((excess >= 0) & (excess <= rough.gap)).all())
        assert rough.energy.requires_grad
        assert not rough.gap.requires_grad


@each_kernel
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_log_probabilities_are_finite(kernel: str, size: float) -> None:
    cost = place(kernel, size * randn(1, 3, 5, 6).sign().float()).requires_grad_()
    weights = place(kernel, rand(1, 1, 2, 5, 6).float()).requires_grad_()
    output = Potts(100, kernel=kernel).solve(cost, weights)
    assert torch.isfinite(output.log_probabilities).all()
    assert bool((output.x == 0).any())  # whose logarithm would not be
    target = place(kernel, torch.zeros(1, 5, 6, dtype=torch.long))
    for gradient in torch.autograd.grad(
        torch.nn.functional.nll_loss(output.log_probabilities, target), (cost, weights)
    ):
        assert torch.isfinite(gradient).all()
        assert bool((gradient != 0).any())


# --- states ---------------------------------------------------------------------------------------


@each_kernel
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_a_state_continues_exactly(kernel: str, epsilon: float) -> None:
    cost, weights = place(kernel, randn(2, 3, 6, 7)), place(kernel, rand(2, 1, 2, 6, 7))
    whole = Potts(30, kernel=kernel, epsilon=epsilon).solve(cost, weights)
    half = Potts(18, kernel=kernel, epsilon=epsilon).solve(cost, weights)
    rest = Potts(12, kernel=kernel, epsilon=epsilon).solve(cost, weights, half.state)
    torch.testing.assert_close(rest.x, whole.x, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(rest.y, whole.y, rtol=1e-12, atol=1e-13)


@each_kernel
def test_gradients_flow_through_a_state(kernel: str) -> None:
    cost, weights = place(kernel, randn(1, 3, 4, 5)), place(kernel, rand(1, 1, 2, 4, 5) + 0.1)
    whole = gradients(Potts(9, kernel=kernel), cost, weights)
    first, second = Potts(5, kernel=kernel), Potts(4, kernel=kernel)
    leaves = [t.clone().requires_grad_() for t in (cost, weights)]
    output = second.solve(*leaves, first.solve(*leaves).state)
    halves = torch.autograd.grad(loss(output.x, output.y), leaves)
    assert_all_close(list(halves), whole, 1e-11)


# --- gradient strategies --------------------------------------------------------------------------


@each_kernel
@pytest.mark.parametrize("last", [1, 4])
def test_truncated_gradient_is_that_of_the_last_steps(kernel: str, last: int) -> None:
    """Against the engine's own truncation, and unlike the whole gradient."""
    cost, weights = randn(1, 3, 4, 5), rand(1, 1, 2, 4, 5) + 0.1
    truncated = Potts(12, tau=0.3, sigma=0.3, gradient=lg.Unroll(last=last), kernel=kernel)
    found = gradients(truncated, place(kernel, cost), place(kernel, weights))
    leaves = [t.clone().requires_grad_() for t in (cost, weights)]
    solution = lg.solve(
        model(*leaves, offsets(2), 0.0),
        lg.PrimalDual(0.3, 0.3, lg.Entropy(), lg.Interval(-1.0, 1.0)),
        torch.full_like(cost, 1 / 3),
        gradient=lg.Unroll(last=last),
        stop=lg.Stop(12),
    )
    expected = torch.autograd.grad(loss(solution.x, solution.y), leaves)
    assert_all_close([g.cpu() for g in found], list(expected), 1e-10)
    whole = gradients(Potts(12, tau=0.3, sigma=0.3, kernel=kernel), *map(_on(kernel), leaves))
    assert not torch.allclose(found[0], whole[0], rtol=1e-3)


def _on(kernel: str) -> Callable[[Tensor], Tensor]:
    return lambda t: place(kernel, t.detach())


def test_truncation_beyond_all_steps_is_none() -> None:
    cost = randn(1, 3, 4, 5)
    assert_all_close(
        gradients(Potts(5, gradient=lg.Unroll(last=9)), cost), gradients(Potts(5), cost), 1e-14
    )


def saved_bytes(layer: Potts, cost: Tensor) -> int:
    """What autograd keeps for the way back, each storage once."""
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = layer.solve(cost.clone().requires_grad_())
    assert output.x.requires_grad
    return sum(kept.values())


@each_kernel
@pytest.mark.parametrize("interval", ["sqrt", 10])
def test_checkpoints_save_memory_and_change_nothing(kernel: str, interval: str | int) -> None:
    cost = place(kernel, randn(1, 3, 16, 16))
    plain = Potts(64, kernel=kernel)
    marked = Potts(64, kernel=kernel, gradient=lg.Unroll(checkpoint=interval))
    assert_all_close(gradients(marked, cost), gradients(plain, cost), 1e-10)
    assert saved_bytes(marked, cost) < 0.6 * saved_bytes(plain, cost)


FAMILY = [
    lg.Implicit(lg.GMRES(tol=1e-10)),
    lg.FixedPoint(terms=2000, tol=1e-11),
    lg.Piggyback(iterations=4000, tol=1e-11),
]


# Converges to rounding, with some edges cut and some not.
SMOOTH = {"epsilon": 1.0, "balance": 0.3}
ISOLATED = 2 * randn(1, 3, 3, 3, seed=10), 0.6 * (rand(1, 1, 2, 3, 3) + 0.2)


def primal_gradients(layer: Potts, state: PottsState | None = None) -> list[Tensor]:
    """Of a loss of the probabilities only: the dual is not unique where pixels merge."""
    leaves = [t.clone().requires_grad_() for t in ISOLATED]
    u = layer.solve(*leaves, state=state).x
    return list(torch.autograd.grad(loss(u, u.new_zeros(1)), leaves))


@pytest.mark.parametrize("gradient", FAMILY, ids=lambda s: type(s).__name__)
def test_the_fixed_point_family_agrees_with_unrolling(gradient: lg.GradientStrategy) -> None:
    cut = Potts(600, **SMOOTH).solve(*ISOLATED).y.abs() > 0.999
    assert bool(cut.any())
    assert not bool(cut[:, :, 0, :-1].all())
    layer = Potts(600, **SMOOTH, gradient=gradient)
    assert_all_close(primal_gradients(layer), primal_gradients(Potts(600, **SMOOTH)), 1e-7)
    assert layer.solve(*ISOLATED).kernel == "reference"


def test_the_family_starts_from_a_state_too() -> None:
    layer = Potts(600, **SMOOTH)
    few = Potts(2, **SMOOTH, gradient=FAMILY[0])
    found = primal_gradients(few, layer.solve(*ISOLATED).state)
    assert_all_close(found, primal_gradients(layer), 1e-7)


# --- kernels and torch ----------------------------------------------------------------------------


def test_the_kernel_is_chosen_overridden_and_reported() -> None:
    cost = randn(1, 3, 4, 5)
    assert Potts(2).solve(cost).kernel == "numba"
    assert Potts(2, kernel="reference").solve(cost).kernel == "reference"
    if torch.cuda.is_available():
        assert Potts(2).solve(cost.cuda()).kernel == "triton"


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_said", set())
    monkeypatch.setattr(choice, "available", lambda package: False)
    with pytest.warns(lg.errors.LegatoWarning, match="Numba is not installed: the Potts layer"):
        assert Potts(2).solve(randn(1, 3, 4, 5)).kernel == "reference"


@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_under_compile(kernel: str) -> None:
    """In one graph: the kernel is an operator to torch.compile."""
    cost, weights = place(kernel, randn(1, 3, 4, 5)), place(kernel, rand(1, 1, 2, 4, 5))
    layer = Potts(6, average=True).to(cost.device)

    def value(c: Tensor, w: Tensor) -> Tensor:
        output = layer.solve(2 * c, w)
        return loss(output.x, output.y) + output.log_probabilities[0, 0].sum()

    compiled = torch.compile(value, backend="aot_eager", fullgraph=True)
    leaves = [t.requires_grad_() for t in (cost, weights)]
    expected = torch.autograd.grad(value(*leaves), leaves)
    assert_all_close(list(torch.autograd.grad(compiled(*leaves), leaves)), list(expected), 1e-12)


def test_compiled_solves_still_have_a_gap() -> None:
    cost = randn(1, 3, 4, 5)
    layer = Potts(6)
    compiled = torch.compile(layer.solve, backend="aot_eager")
    torch.testing.assert_close(compiled(cost, 0.3).gap, layer.solve(cost, 0.3).gap)


@each_kernel
def test_autocast_stays_outside(kernel: str) -> None:
    cost = place(kernel, randn(1, 3, 8, 9).float())
    layer = Potts(40, kernel=kernel)
    right = layer.solve(cost, 0.4)
    with torch.autocast(cost.device.type, dtype=torch.bfloat16):
        found = layer.solve(cost, 0.4)
    assert found.x.dtype == torch.float32
    torch.testing.assert_close(found.x, right.x)
    torch.testing.assert_close(found.log_probabilities, right.log_probabilities)


def test_second_derivatives_need_the_reference() -> None:
    layer = Potts(3, tau=0.3, sigma=0.3, kernel="reference")
    cost, weights = randn(1, 2, 2, 3).requires_grad_(), (rand(1, 1, 2, 2, 3) + 0.1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda c, w: layer.solve(c, w).x, (cost, weights))
    u = Potts(3, kernel="numba").solve(cost, weights).x
    (first,) = torch.autograd.grad(u.square().sum(), cost, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        first.sum().backward()


def test_no_tape_without_gradients() -> None:
    cost = randn(1, 3, 4, 5).requires_grad_()
    with torch.no_grad():
        assert not Potts(3).solve(cost).x.requires_grad
    assert saved_bytes(Potts(3), cost) > 0


# --- as a module ----------------------------------------------------------------------------------


def test_state_dict_round_trip() -> None:
    cost = randn(1, 3, 4, 5)
    trained = Potts(5, balance=7.0, learn_balance=True)
    fresh = Potts(5, learn_balance=True)
    assert not torch.equal(fresh.solve(cost).x, trained.solve(cost).x)
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh.solve(cost).x, trained.solve(cost).x)
    twin = copy.deepcopy(trained)
    assert torch.equal(twin.solve(cost).x, trained.solve(cost).x)


def test_repr_says_what_it_does() -> None:
    text = repr(Potts(7, neighbours=8, gradient=lg.Unroll(last=3)))
    for part in ("iterations=7", "neighbours=8", "last=3"):
        assert part in text


def test_training_decreases_the_loss() -> None:
    """A network, the scaling layer and Potts in a row, weights from the image."""
    torch.manual_seed(0)
    target = torch.zeros(1, 8, 10, dtype=torch.long)
    target[:, 2:6, 3:8] = 1
    target[:, :, 8:] = 2
    image = nn.functional.one_hot(target, 3).movedim(-1, 1).float() + 0.5 * torch.randn(1, 3, 8, 10)
    network = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), Scale(20), Potts(20, learn_balance=True))
    weights = ContrastWeights(beta=0.5)
    parameters = [*network.parameters(), *weights.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=0.05)
    losses = []
    for _ in range(15):
        optimiser.zero_grad()
        found = network[2](network[:2](image), weights(image))
        value = torch.nn.functional.nll_loss(found, target)
        value.backward()
        assert all(p.grad is not None and bool((p.grad != 0).any()) for p in parameters)
        optimiser.step()
        losses.append(float(value.detach()))
    assert losses[-1] < 0.6 * losses[0]
    assert network(image).shape == image.shape


def test_a_long_solve_with_entropy_and_a_learned_balance_takes_the_precise_kernel() -> None:
    cost = torch.randn(1, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    fastest = Potts(5).solve(cost).kernel
    assert Potts(LONG_SOLVE + 1, epsilon=0.1, learn_balance=True).solve(cost).kernel == "reference"
    assert Potts(LONG_SOLVE, epsilon=0.1, learn_balance=True).solve(cost).kernel == fastest
    assert Potts(LONG_SOLVE + 1, epsilon=0.1).solve(cost).kernel == fastest
    assert Potts(LONG_SOLVE + 1, learn_balance=True).solve(cost).kernel == fastest


@each_kernel
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
@pytest.mark.parametrize("average", [False, True], ids=["last", "mean"])
def test_derivatives_know_that_steps_follow_from_the_weights(
    kernel: str, epsilon: float, average: bool
) -> None:
    """Two images, one of whose weights are larger: the derivative along a random direction of W,
    and along W itself, which moves the steps the most."""
    cost, w = place(kernel, randn(2, 3, 4, 5)), place(kernel, rand(2, 1, 2, 4, 5) + 0.1)
    w[1] *= 5
    layer = Potts(20, epsilon=epsilon, average=average, kernel=kernel)

    def value(weights: Tensor) -> Tensor:
        output = layer.solve(cost, weights)
        return loss(output.x, output.y)

    weights = w.clone().requires_grad_()
    (found,) = torch.autograd.grad(value(weights), weights)
    for direction in (w, place(kernel, randn(2, 1, 2, 4, 5, seed=3))):
        h = 1e-6
        slope = (value(w + h * direction) - value(w - h * direction)) / (2 * h)
        torch.testing.assert_close((found * direction).sum(), slope, rtol=1e-5, atol=1e-8)


def test_a_declared_bound_fixes_the_steps() -> None:
    cost, weights = randn(1, 3, 4, 5), rand(1, 1, 2, 4, 5)
    step = 1 / (8**0.5 * 3.0)
    bounded = Potts(10, balance=2.0, max_weight=3.0).solve(cost, weights)
    given = Potts(10, tau=2 * step, sigma=step / 2).solve(cost, weights)
    torch.testing.assert_close(bounded.x, given.x, rtol=1e-6, atol=1e-6)
    with pytest.raises(lg.errors.StepError, match=r"reach 3.1, more than max_weight = 3"):
        Potts(2, max_weight=3.0).solve(cost, 3.1)
    for wrong in ({"max_weight": 0.0}, {"max_weight": 1.0, "tau": 0.1, "sigma": 0.1}):
        with pytest.raises(lg.errors.StepError, match="max_weight"):
            Potts(**wrong)
