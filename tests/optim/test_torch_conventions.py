"""lr, momentum, groups and schedulers mean what they mean in torch."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from torch.optim import lr_scheduler

import legato as lg
from legato import bilevel, optim
from legato.errors import InputError, StepError
from optim.data import Counted, least_squares, normal

A, b = normal(30, 20, seed=1), normal(30, seed=2)
L = float(torch.linalg.matrix_norm(A, 2)) ** 2
ONES = torch.ones(20, dtype=torch.float64)


def heavy_ball(params, lr, momentum=0.0, prox=None):
    return optim.HeavyBall(params, lr, momentum, prox)


def ipiano(params, lr, momentum=0.0, prox=None):
    return optim.IPiano(params, optim.ConstantStep(lr, momentum), prox)


def proximal_gradient(params, lr, momentum=0.0, prox=None):
    assert momentum == 0
    return optim.ProximalGradient(params, lr, prox)


WITH_LR = [heavy_ball, ipiano, proximal_gradient]
SEARCHING = [
    optim.IPiano,
    optim.ProximalGradient,
    optim.NonlinearCG,
    lambda params: optim.IPiano(params, optim.VariableMomentum()),
    lambda params: optim.IPiano(params, optim.NonConvexStep()),
]


def bends(x):
    return least_squares(A, b)(x) + torch.sin(3 * x).sum()


# --- torch's SGD ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", WITH_LR)
def test_without_momentum_and_prox_it_is_sgd_bit_for_bit(make, dtype):
    def f(x):
        return 0.5 * ((A.to(dtype) @ x - b.to(dtype)) ** 2).sum() + torch.sin(3 * x).sum()

    ours, theirs = Counted(f, ONES.to(dtype)), Counted(f, ONES.to(dtype))
    optimizer, sgd = make([ours.x], lr=0.013 / L), torch.optim.SGD([theirs.x], lr=0.013 / L)
    for _ in range(50):
        loss = optimizer.step(ours)
        sgd.zero_grad()
        assert loss == float(sgd.step(theirs).detach())
        assert torch.equal(ours.point, theirs.point)


@pytest.mark.parametrize("make", [heavy_ball, ipiano])
def test_with_momentum_it_is_sgd_up_to_rounding(make):
    ours, theirs = Counted(bends, ONES), Counted(bends, ONES)
    optimizer = make([ours.x], lr=0.3 / L, momentum=0.7)
    sgd = torch.optim.SGD([theirs.x], lr=0.3 / L, momentum=0.7)
    for _ in range(50):
        optimizer.step(ours)
        sgd.zero_grad()
        sgd.step(theirs)
        assert float((ours.point - theirs.point).abs().max()) <= 1e-12


# --- groups ---------------------------------------------------------------------------------------


def test_a_groups_lr_is_obeyed():
    p = torch.zeros(1, requires_grad=True)
    optimizer = optim.HeavyBall([{"params": [p], "lr": 0.5}], lr=0.1)
    p.sum().backward()
    optimizer.step()
    assert float(p.detach()) == -0.5


@pytest.mark.parametrize("make", [heavy_ball, ipiano])
def test_every_group_has_its_own_numbers_and_prox(make):
    """Against the formula, for two groups and the defaults."""
    numbers = [(0.01, 0.7), (0.02, 0.5), (0.03, 0.1)]
    box = lg.Box(-0.2, 0.3)
    starts = [normal(20, seed=seed) for seed in range(3)]
    params = [x.clone().requires_grad_() for x in starts]
    groups = [
        {"params": [params[0]]},
        {"params": [params[1]], "lr": 0.02, "momentum": 0.5, "prox": box},
        {"params": [params[2]], "lr": 0.03, "momentum": 0.1},
    ]
    optimizer = make(groups, lr=0.01, momentum=0.7)

    def closure():
        loss = sum(least_squares(A, b)(p) for p in params)
        loss.backward()
        return loss

    x, previous = list(starts), list(starts)
    for _ in range(20):
        optimizer.step(closure)
        for i, (lr, momentum) in enumerate(numbers):
            half = x[i] - lr * A.T @ (A @ x[i] - b) + momentum * (x[i] - previous[i])
            x[i], previous[i] = half.clamp(-0.2, 0.3) if i == 1 else half, x[i]
        for p, expected in zip(params, x, strict=True):
            assert torch.allclose(p.detach(), expected, rtol=1e-12, atol=1e-12)
    if make is ipiano:
        assert [(used.lr, used.momentum) for used in optimizer.steps] == numbers


def test_a_searched_step_obeys_a_groups_momentum():
    params = [ONES.clone().requires_grad_() for _ in range(2)]
    optimizer = optim.IPiano([{"params": [params[0]], "momentum": 0.5}, {"params": [params[1]]}])
    values = []

    def closure():
        loss = sum(bends(p) for p in params)
        loss.backward()
        return loss

    for _ in range(60):
        optimizer.step(closure)
        values.append(optimizer.H)
        first, second = optimizer.steps
        assert first.lr == pytest.approx(0.99 * 2 * (1 - 0.5) / optimizer.L)
        assert second.lr == pytest.approx(0.99 * 2 * (1 - 0.8) / optimizer.L)
    assert all(new <= old + 1e-12 * abs(old) for old, new in pairwise(values))


@pytest.mark.parametrize("make", [heavy_ball, ipiano])
def test_numbers_changed_between_steps_are_obeyed(make):
    closure = Counted(bends, ONES)
    optimizer = make([closure.x], lr=0.1 / L, momentum=0.5)
    optimizer.step(closure)
    before, gradient = closure.point, torch.func.grad(bends)(closure.point)
    optimizer.param_groups[0].update(lr=0.03 / L, momentum=0.2, prox=lg.L1(0.5))
    optimizer.step(closure)
    half = before - 0.03 / L * gradient + 0.2 * (before - ONES)
    expected = torch.sign(half) * torch.clamp(half.abs() - 0.5 * 0.03 / L, min=0)
    assert torch.allclose(closure.point, expected, rtol=1e-13, atol=1e-13)


def test_a_group_added_later_goes_along():
    first, second = ONES.clone().requires_grad_(), ONES.clone().requires_grad_()

    def closure():
        loss = bends(first) + (second - 3).square().sum()
        loss.backward()
        return loss

    for optimizer in (optim.IPiano([first]), heavy_ball([first], 0.1 / L, 0.5)):
        optimizer.step(lambda: [loss := bends(first), loss.backward()][0])
        optimizer.add_param_group({"params": [second], "prox": lg.Box(-2.0, 2.0)})
        before = second.detach().clone()
        for _ in range(3):
            optimizer.step(closure)
        assert float((second.detach() - before).min()) > 0


def test_a_tensor_as_lr():
    closure, plain = Counted(bends, ONES), Counted(bends, ONES)
    for lr, counted in ((torch.tensor(0.1), closure), (float(torch.tensor(0.1)), plain)):
        optim.HeavyBall([counted.x], lr).step(counted)
    assert torch.equal(closure.point, plain.point)


@pytest.mark.parametrize("name", ["alpha", "beta", "weight_decay", "momentums"])
def test_numbers_that_would_be_ignored_are_refused(name):
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(InputError, match=f"A group has {name}=0.5, which HeavyBall would ignore"):
        optim.HeavyBall([{"params": [x], name: 0.5}], lr=0.1)
    optim.HeavyBall([{"params": [x], "name": "weights"}], lr=0.1)  # words do no harm


@pytest.mark.parametrize("make", SEARCHING)
def test_an_lr_that_would_be_ignored_is_refused(make):
    with pytest.raises(InputError, match=r"lr=0.5, which .* the steps are searched for"):
        make([{"params": [torch.zeros(2, requires_grad=True)], "lr": 0.5}])


@pytest.mark.parametrize(
    ("changed", "error"),
    [({"lr": -1.0}, StepError), ({"lr": float("nan")}, StepError), ({"momentum": 1.0}, InputError)],
)
@pytest.mark.parametrize("make", [heavy_ball, ipiano])
def test_bad_numbers_are_refused_whenever_they_come(make, changed, error):
    closure = Counted(bends, ONES)
    with pytest.raises(error):
        make([{"params": [closure.x], **changed}], lr=0.1)
    optimizer = make([closure.x], lr=0.1)
    optimizer.param_groups[0].update(changed)
    with pytest.raises(error):
        optimizer.step(closure)
    assert torch.equal(closure.point, ONES)


def test_a_schedule_beyond_the_condition_is_refused():
    closure = Counted(least_squares(A, b), ONES)
    optimizer = optim.IPiano([closure.x], optim.ConstantStep(0.9 / L, 0.5, L))
    lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.2)
    with pytest.raises(StepError, match=r"violates lr < 2\(1 − momentum\)/L"):
        optimizer.step(closure)


# --- schedulers -----------------------------------------------------------------------------------

STEPS = 12
SCHEDULES = {
    "step": lambda o: lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=8),  # reaches 0 and rises again
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, threshold=0.3),
    "warm-up": lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=5),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.5 / L, total_steps=STEPS + 1),
}


def advance(scheduler, loss):
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(loss)
    else:
        scheduler.step()


def by_hand(schedule, lr, momentum):
    """The formula, with numbers from the same scheduler on one of torch's own optimisers."""
    dummy = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr, momentum=momentum)
    scheduler = schedule(dummy)
    x = previous = ONES
    points, numbers = [], []
    for _ in range(STEPS):
        (group,) = dummy.param_groups
        numbers.append((group["lr"], group["momentum"]))
        loss, gradient = float(bends(x)), torch.func.grad(bends)(x)
        lr, momentum = numbers[-1] if numbers[-1][0] > 0 else (0.0, 0.0)  # as torch's SGD
        half = x - lr * gradient + momentum * (x - previous)
        x, previous = torch.sign(half) * torch.clamp(half.abs() - 0.5 * lr, min=0), x
        points.append(x)
        dummy.step()
        advance(scheduler, loss)
    assert len(set(numbers)) > 2
    return points


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("make", [heavy_ball, ipiano])
def test_schedulers_are_a_loop_by_hand(make, schedule):
    closure = Counted(bends, ONES)
    optimizer = make([closure.x], lr=0.3 / L, momentum=0.6, prox=lg.L1(0.5))
    scheduler = schedule(optimizer)
    for expected in by_hand(schedule, 0.3 / L, 0.6):
        loss = optimizer.step(closure)
        assert torch.allclose(closure.point, expected, rtol=1e-11, atol=1e-12)
        advance(scheduler, loss)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("make", SEARCHING)
def test_steps_that_are_searched_for_refuse_a_scheduler(make, schedule):
    x = torch.zeros(2, requires_grad=True)
    optimizer = make([x])
    words = "searches for its own steps|must support momentum"
    with pytest.raises((InputError, ValueError), match=words):
        schedule(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises((InputError, ValueError), match=words):
        schedule(optimizer)


@pytest.mark.parametrize("make", [heavy_ball, ipiano])
def test_a_schedule_survives_saving_and_copying(make):
    def parts(start):
        closure = Counted(bends, start)
        optimizer = make([closure.x], lr=0.3 / L, momentum=0.6)
        return closure, optimizer, lr_scheduler.StepLR(optimizer, 2, 0.5)

    closure, optimizer, scheduler = parts(ONES)

    def step(closure, optimizer, scheduler):
        optimizer.step(closure)
        scheduler.step()

    for _ in range(3):
        step(closure, optimizer, scheduler)
    other = parts(closure.point)
    other[1].load_state_dict(optimizer.state_dict())
    other[2].load_state_dict(scheduler.state_dict())
    twins = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    assert all(t.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] for t in twins)
    for _ in range(4):
        step(closure, optimizer, scheduler)
        step(*other)
        assert torch.equal(closure.point, other[0].point)


@pytest.mark.parametrize("make", [heavy_ball, ipiano])
def test_in_a_fit_the_scheduler_goes_into_the_callback(make):
    closure = Counted(bends, ONES)
    optimizer = make([closure.x], lr=0.3 / L, momentum=0.6, prox=lg.L1(0.5))
    schedule = SCHEDULES["step"]
    scheduler = schedule(optimizer)
    bilevel.fit(
        lambda inner: bends(closure.x),
        closure.x,
        optimizer,
        STEPS,
        inexact=bilevel.HOAG(),  # which may repeat a step, and must not undo the scheduler's work
        callback=lambda record: scheduler.step(),
    )
    assert torch.allclose(closure.point, by_hand(schedule, 0.3 / L, 0.6)[-1], rtol=1e-11)
