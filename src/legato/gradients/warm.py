"""Iterations that began near the solution, and whose derivatives did not."""

from __future__ import annotations

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number, is_concrete
from legato._support.telling import tell
from legato.errors import GradientError, InexactGradientWarning
from legato.gradients.base import Linearisation, Task, pull_back
from legato.gradients.linear.base import norm, ratio
from legato.gradients.linear.spectrum import random_vector
from legato.running import Run, batch_of, most

MISSING = 0.05
"""Share of a derivative that may be missing without a word."""
_PRODUCTS = 20
"""Products with A_xᵀ at most, from which the share left after more iterations is extrapolated."""


def warn_if_too_few(task: Task, done: Run) -> None:
    r"""A tolerance that is met at once ends the derivatives' way, too, which is longer.

    .. math:: \frac{dx^N}{dθ} − \frac{dx^*}{dθ} ≈ A_x^N \left(\frac{dx^0}{dθ} −
              \frac{dx^*}{dθ}\right), \qquad ‖x^N − x^{N-1}‖ ≈ ‖A_x‖^{N-1} ‖x^1 − x^0‖

    From a start far away both come closer by the same factor, and the tolerance of the one serves
    the other. A start close to the solution, as that of an earlier solve, has a derivative of 0.
    Only where the changes have not shrunk much, A_xᴺ is looked at.
    Reference: Griewank and Walther (2008), Section 15.
    """
    tol, algorithm, problem = task.stop.tol, task.algorithm, task.problem
    if tol is None or not is_concrete() or not torch.is_grad_enabled():
        return
    if not any(t.requires_grad for t in tree.leaves(done.state)):
        return
    if not bool(torch.as_tensor(done.converged).all()):
        return
    with torch.no_grad():
        start = tree.detach(task.state)
        batch = batch_of(problem, algorithm, start)
        first = algorithm.residual(start, algorithm.step(problem, start), batch)
    if bool((done.residual.reshape(-1) <= MISSING**2 * first.reshape(-1)).all()):
        return
    share = _share_left(task, done)
    if share is not None and share > MISSING:
        tell(
            f"The tolerance {tol:.0e} was reached after {most(done.iterations)} iterations because "
            f"the start was close to the solution, but derivatives start from nothing: about "
            f"{share:.0%} of the gradient that Unroll computes from so few iterations is missing. "
            "Use Implicit(), which needs none, or a fixed number of iterations, Stop(iterations).",
            InexactGradientWarning,
        )


def _share_left(task: Task, done: Run) -> float | None:
    """‖(A_xᵀ)ᴺ A_xᵀr‖/‖A_xᵀr‖ for random r at x, the largest of a batch; None where unknown.

    Mirror coordinates at a boundary, which do not move x, have no share in it.
    """
    state = tree.detach(done.state)
    try:
        resting = task.algorithm.at_rest(task.problem, state)
        plain, before = task.algorithm.fixed_point_map(resting)
        batch = batch_of(task.problem, plain, before)
        linearisation = Linearisation(task.problem, plain, before, batch=batch)
        with torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in tree.leaves(before)]
            x = tree.leaves(plain.solution(tree.rebuild(before, inputs)))
    except (GradientError, RuntimeError):  # averages are no fixed points, whole numbers no leaves
        return None
    drawn = [random_vector(t.detach()) for t in x]
    r = linearisation.rows.flatten(tree.rebuild(before, pull_back(x, inputs, drawn)))
    # One product takes away what rests, such as entries at a bound, and favours what is slow, as
    # the derivative (I − A_xᵀ)⁻¹ξ does.
    r = linearisation.transposed(r)
    eps = torch.finfo(r.dtype).eps
    moved = tree.norm(tuple(drawn)) * tree.norm(tuple(t.detach() for t in x))
    size = torch.clamp(norm(r), min=as_number(eps**0.5 * moved))
    v: Tensor = r
    ran = torch.as_tensor(done.iterations).to(v).reshape(-1, 1)
    if ran.numel() != v[..., :1].numel():
        ran = ran.amin()
    count = min(int(ran.amin()), _PRODUCTS)
    for _ in range(count):
        v = linearisation.transposed(v)
    return as_number((ratio(norm(v), size) ** (ran / count)).amax())
