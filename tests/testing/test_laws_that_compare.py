"""Faults that lead to a wrong number and to no error: a law has to compare, not only to run."""

from typing import NamedTuple

import pytest
import torch

import legato as lg
from legato.errors import LawError
from legato.testing import check_algorithm, check_function
from makers import randn


class Slow(NamedTuple):
    x: torch.Tensor
    step: torch.Tensor


class KeepsAShrunkenStep(lg.Algorithm):
    """Takes over the step of a state, a hundredth of it: too slow to arrive anywhere."""

    def init(self, problem, x0):
        x = problem.start() if x0 is None else x0
        return Slow(x, 1 / torch.as_tensor(problem.smooth.lipschitz()))

    def step(self, problem, state):
        moved = state.x - state.step * problem.smooth.grad(state.x)
        return state._replace(x=problem.nonsmooth.prox(moved, state.step))

    def resume(self, problem, state):
        return state._replace(step=0.01 * state.step)

    def solution(self, state):
        return state.x


def test_a_fresh_start_that_does_not_arrive_is_found():
    problem = lg.Composite(lg.LeastSquares(randn(9, 5), randn(9, seed=1)), lg.L1(0.3))
    with pytest.raises(LawError, match="fresh start"):
        check_algorithm(KeepsAShrunkenStep(), problem, stop=lg.Stop(300))


def test_laws_that_do_not_apply_to_tuples_say_so():
    term = lg.Separable(lg.SquaredNorm(), lg.SquaredNorm())
    report = check_function(term, (randn(3), randn(2, seed=1)))
    skipped = [law for law in report.laws if law.value is None]
    assert any("single real tensors" in repr(law) for law in skipped)
