"""The sparse coding layer against scikit-learn, differences, and bad input."""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import sparse_encode
from sklearn.linear_model import Lasso
from torch import Tensor

import legato as lg
from legato import errors
from legato.nn import SparseCoding
from makers import randn

STRATEGIES = [lg.Unroll(), lg.Implicit(), lg.FixedPoint(terms=5000, tol=1e-9)]


def layer(**options: Any) -> SparseCoding:
    settings: dict[str, Any] = {"weight": 0.3, "iterations": 20000, "tol": 1e-12}
    made = SparseCoding(9, 6, **(settings | options)).double()
    made.set_dictionary(randn(6, 9, seed=1))
    return made


# --- the model ------------------------------------------------------------------------------------


def test_codes_are_those_of_scikit_learn() -> None:
    coder, y = layer(), randn(5, 6)
    output = coder.solve(y)
    D = coder.dictionary.detach().numpy()
    theirs = sparse_encode(y, D.T, algorithm="lasso_lars", alpha=0.3)
    np.testing.assert_allclose(output.x.detach(), theirs, atol=1e-8)
    assert 0 < int((output.x == 0).sum()) < 45
    torch.testing.assert_close(output.reconstruction, output.x @ coder.dictionary.mT)


def test_nonnegative_codes_are_those_of_a_positive_lasso() -> None:
    coder, y = layer(nonnegative=True), randn(4, 6)
    output = coder.solve(y)
    D = coder.dictionary.detach().numpy()
    lasso = Lasso(alpha=0.3 / 6, positive=True, fit_intercept=False, tol=1e-14, max_iter=100_000)
    for signal, code in zip(y, output.x.detach(), strict=True):
        np.testing.assert_allclose(code, lasso.fit(D, signal.numpy()).coef_, atol=1e-8)
    assert float(output.x.detach().min()) == 0.0
    assert float(layer()(y).detach().min()) < 0


@pytest.mark.parametrize("nonnegative", [False, True])
def test_the_gap_bounds_what_is_missing(nonnegative: bool) -> None:
    y = randn(5, 6)
    best = layer(nonnegative=nonnegative).solve(y)

    def energies(output: Any) -> Tensor:
        rest = (output.reconstruction - y).square().sum(-1)
        return (0.5 * rest + output.weight * output.x.abs().sum(-1)).detach()

    assert float(best.gap.abs().max()) <= 1e-9
    for n in (1, 5, 20):
        early = layer(nonnegative=nonnegative, iterations=n, tol=None).solve(y)
        assert bool((early.gap >= energies(early) - energies(best) - 1e-9).all())


def test_a_large_weight_gives_zero_and_a_small_one_explains() -> None:
    y = randn(3, 6)
    output = layer(weight=100.0).solve(y)
    assert not bool(output.x.any())
    assert float(output.gap.abs().max()) <= 1e-12
    fine = layer(weight=1e-3, iterations=2000, tol=None).solve(y)
    assert float((fine.reconstruction - y).detach().abs().max()) <= 1e-2


def test_leading_axes_are_batches() -> None:
    coder, y = layer(), randn(2, 3, 6)
    whole = coder(y)
    assert whole.shape == (2, 3, 9)
    torch.testing.assert_close(whole[1, 2], coder(y[1, 2]), rtol=1e-9, atol=1e-9)


def test_a_start() -> None:
    coder, y = layer(tol=1e-9), randn(3, 6)
    cold = coder.solve(y)
    # Fewer iterations are the point of a start, and too few for derivatives, which begin at 0.
    with pytest.warns(errors.InexactGradientWarning, match="because the start was close"):
        warm = coder.solve(y, cold.x.detach())
    assert bool((warm.solution.iterations < cold.solution.iterations / 2).all())
    torch.testing.assert_close(warm.x, cold.x, rtol=0, atol=1e-5)
    ends, h = [], 1e-6
    for size in (h, -h):
        moved = layer()
        with torch.no_grad():
            moved.log_weight += size
            ends.append(float(moved(y)[0].sum()))
    right = (ends[0] - ends[1]) / (2 * h)
    found, told = (
        float(torch.autograd.grad(output.x[0].sum(), coder.log_weight)[0])
        for output in (cold, warm)
    )
    assert found == pytest.approx(right, rel=1e-5)
    assert told != pytest.approx(right, rel=0.05)


def test_sizes_of_signals() -> None:
    """z scales with (y, λ) inside of float32's range; outside an error says so."""
    y = randn(3, 6, dtype=torch.float32)
    right = layer(iterations=50, tol=None).float()(y)
    for size in (1e-7, 1e7):
        found = layer(weight=0.3 * size, iterations=50, tol=None).float()(size * y)
        torch.testing.assert_close(found / size, right, rtol=1e-4, atol=1e-5)
    for size in (1e-12, 1e12):
        with pytest.raises(
            errors.InputError, match=r"signals has a largest entry.*Scale the data.*float64"
        ):
            layer().float()(size * y)


# --- gradients ------------------------------------------------------------------------------------


def posed(nonnegative: bool, gradient: lg.GradientStrategy) -> tuple[Any, dict[str, Tensor]]:
    """A loss of the codes, and the tensors that it depends on."""
    coder = layer(gradient=gradient, nonnegative=nonnegative)
    y, target = randn(3, 6).requires_grad_(), randn(3, 9, seed=3)

    def loss() -> Tensor:
        return (coder(y) - target).square().sum()

    return loss, {"directions": coder.directions, "log_weight": coder.log_weight, "signals": y}


def direction(x: Tensor) -> Tensor:
    return randn(max(x.numel(), 1), seed=7).reshape(x.shape)


@cache
def differences(nonnegative: bool) -> dict[str, float]:
    """By how much the loss changes along a direction in each tensor; all strategies share them."""
    loss, tensors = posed(nonnegative, STRATEGIES[0])
    found, h = {}, 1e-6
    with torch.no_grad():
        for name, x in tensors.items():
            before, ends = x.clone(), []
            for size in (h, -h):
                x.copy_(before + size * direction(x))
                ends.append(float(loss()))
            x.copy_(before)
            found[name] = (ends[0] - ends[1]) / (2 * h)
    return found


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("gradient", STRATEGIES, ids=lambda g: type(g).__name__)
def test_gradients_against_differences(gradient: lg.GradientStrategy, nonnegative: bool) -> None:
    loss, tensors = posed(nonnegative, gradient)
    slopes = torch.autograd.grad(loss(), [*tensors.values()])
    for (name, x), slope in zip(tensors.items(), slopes, strict=True):
        right = differences(nonnegative)[name]
        assert abs(right) > 1e-3
        assert float((slope * direction(x)).sum()) == pytest.approx(right, rel=1e-6), name


def test_lengths_of_atoms_do_not_matter() -> None:
    coder, y = layer(), randn(3, 6)
    before = coder(y).detach()
    with torch.no_grad():
        coder.directions.mul_(torch.linspace(0.1, 20, 9).double())
    torch.testing.assert_close(coder(y).detach(), before, rtol=1e-8, atol=1e-9)
    coder(y).square().sum().backward()
    assert coder.directions.grad is not None
    along = (coder.directions.grad * coder.directions.detach()).sum(0)
    assert float(along.abs().max()) <= 1e-10


def test_the_backward_solve_reports() -> None:
    coder = layer(gradient=lg.Implicit())
    output = coder.solve(randn(3, 6))
    output.x.sum().backward()
    report = output.solution.backward
    assert report.converged is True
    assert report.residual is not None
    assert report.residual <= 1e-6


@pytest.mark.parametrize("gradient", [lg.Unroll(), lg.Implicit()], ids=["Unroll", "Implicit"])
def test_a_missed_tolerance_is_said_once(gradient: lg.GradientStrategy) -> None:
    coder = layer(iterations=3, gradient=gradient)
    with pytest.warns(errors.NotConvergedWarning, match="after 3 iterations") as caught:
        coder(randn(3, 6))
    assert len(caught) == 1
    with torch.no_grad(), pytest.warns(errors.NotConvergedWarning, match="after 3 iterations"):
        coder(randn(3, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert layer().solve(randn(3, 6)).solution.converged.all()


def test_a_dictionary_is_learned() -> None:
    truth = torch.nn.functional.normalize(randn(6, 9, seed=5), dim=0)
    codes = randn(60, 9, seed=6) * (torch.arange(9) == torch.arange(60)[:, None] % 9)
    y = codes @ truth.mT
    coder = layer(weight=0.05, iterations=30, tol=None)
    optimizer = torch.optim.Adam([coder.directions], lr=0.05)
    losses = []
    for _ in range(60):
        loss = (coder.solve(y).reconstruction - y).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.25 * losses[0]


def test_state_dict_and_dtype() -> None:
    one, other = SparseCoding(4, 3), SparseCoding(4, 3)
    other.load_state_dict(one.state_dict())
    y = randn(2, 3, dtype=torch.float32)
    assert torch.equal(one(y), other(y))
    assert one(y).dtype == torch.float32
    assert set(one.state_dict()) == {"directions", "log_weight"}


# --- bad input ------------------------------------------------------------------------------------


def test_a_zero_atom_is_refused() -> None:
    coder = layer()
    dictionary = randn(6, 9)
    dictionary[:, 4] = 0
    with pytest.raises(errors.InputError, match=r"Atom 4 of the dictionary is zero \(1 of 9"):
        coder.set_dictionary(dictionary)
    with torch.no_grad():
        coder.directions[:, 2:4] = 0
    with pytest.raises(errors.InputError, match=r"Atom 2 of the directions is zero \(2 of 9"):
        coder(randn(3, 6))


@pytest.mark.parametrize(
    ("signals", "words"),
    [
        (torch.zeros(3, 5).double(), r"\(…, 6\), not \(3, 5\)"),
        ("signal", "not str"),
        (torch.zeros(0, 6).double(), "empty"),
        (torch.full((2, 6), math.nan).double(), "12 NaN"),
        (torch.zeros(2, 6), "float64.*float32"),
        (torch.zeros(2, 6, dtype=torch.int64), "torch.int64"),
    ],
)
def test_bad_signals(signals: Any, words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        layer()(signals)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"atoms": 0}, "atoms"),
        ({"atoms": 2.5}, "atoms"),
        ({"features": True}, "features"),
        ({"weight": 0.0}, "weight"),
        ({"weight": math.nan}, "weight"),
        ({"iterations": 0}, "SparseCoding needs a positive number of iterations"),
        ({"tol": -1.0}, "tol"),
        ({"gradient": "unroll"}, r"Unroll\(\)"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        SparseCoding(**({"atoms": 4, "features": 3} | options))


def test_bad_dictionaries() -> None:
    with pytest.raises(errors.InputError, match=r"\(6, 9\), not \(9, 6\)"):
        layer().set_dictionary(torch.zeros(9, 6))
    with pytest.raises(errors.InputError, match="NaN"):
        layer().set_dictionary(torch.full((6, 9), math.nan))


def test_what_the_layer_says_of_itself():
    assert "atoms=5, features=3, nonnegative=False" in repr(SparseCoding(5, 3))
