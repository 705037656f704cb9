"""The figures of docs/differences.md: ``python experiments/errata/run.py``.

Each formula of the paper that had to be corrected, as printed and as corrected, against central
differences of the plain iteration in float64. The iterations are written out here and the printed
formulas, too, so that nothing but the corrected sweeps comes from the library. Writes results.json
beside this file; the page reads its numbers from there, and the tests compute them again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from legato.console.provenance import provenance
from legato.studies.sweeps import (
    ForwardBackwardPartials,
    PrimalDualPartials,
    StepPartials,
    implicit,
    reverse_forward_backward,
    reverse_primal_dual,
)

RESULTS = Path(__file__).with_name("results.json")
N = 12
DOUBLE = torch.float64


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def relative_error(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def central_differences(
    function: Callable[[Tensor], Tensor], theta: Tensor, h: float = 1e-3
) -> Tensor:
    """The gradient by differences over ±h and ±2h, so that the error is of order h⁴."""

    def slope(direction: Tensor, step: float) -> Tensor:
        ahead, behind = function(theta + step * direction), function(theta - step * direction)
        return (ahead - behind) / (2 * step)

    axes = torch.eye(len(theta), dtype=DOUBLE)
    return torch.stack([(4 * slope(e, h) - slope(e, 2 * h)) / 3 for e in axes])


def loss(*points: Tensor) -> Tensor:
    """Smooth, and different in every entry."""
    x = torch.cat(points)
    return (torch.cos(torch.arange(len(x), dtype=DOUBLE)) * x + 0.5 * x * x).sum()


# --- forward–backward with entropic steps: min ½‖Ax − θ‖² over x ≥ 0 ------------------------------

_LEFT, _, _RIGHT = torch.linalg.svd(random(0, 7, 5), full_matrices=False)
MATRIX = _LEFT @ torch.diag(torch.linspace(1.0, 1.6, 5, dtype=DOUBLE)) @ _RIGHT
TARGET = MATRIX @ torch.tensor([0.9, 0.6, -0.5, 0.8, -0.4], dtype=DOUBLE)
ALPHA = 0.4


def slope(x: Tensor, theta: Tensor) -> Tensor:
    return MATRIX.T @ (MATRIX @ x - theta)


def entropic_step(x: Tensor, theta: Tensor) -> Tensor:
    return x * torch.exp(-ALPHA * slope(x, theta))


def algorithm_2() -> dict[str, float]:
    """Erratum 1: ∇²ψ(xⁿ) where the identity is printed."""
    start = torch.full((5,), 0.5, dtype=DOUBLE)

    def output(theta: Tensor) -> Tensor:
        x = start
        for _ in range(N):
            x = entropic_step(x, theta)
        return x

    def prox(y: Tensor, theta: Tensor) -> Tensor:
        return torch.exp(y)

    partials, x = [], start
    for _ in range(N):
        y = torch.log(x) - ALPHA * slope(x, TARGET)
        partials.append(
            ForwardBackwardPartials(
                *jacobian(prox, (y, TARGET)),
                *jacobian(slope, (x, TARGET)),
                jacobian(torch.log, x),
            )
        )
        x = torch.exp(y)
    xi = jacobian(loss, x)
    truth = central_differences(lambda theta: loss(output(theta)), TARGET)
    printed = [p._replace(metric=torch.eye(5, dtype=DOUBLE)) for p in partials]
    return {
        "right": relative_error(reverse_forward_backward(partials, ALPHA, xi), truth),
        "printed": relative_error(reverse_forward_backward(printed, ALPHA, xi), truth),
    }


# --- primal–dual on a Potts problem: 3 labels, 2 × 3 pixels, θ = (costs, weights) -----------------

LABELS, HEIGHT, WIDTH = 3, 2, 3
COSTS, EDGES = LABELS * HEIGHT * WIDTH, 2 * HEIGHT * WIDTH
TAU = SIGMA = 0.6
POTTS = torch.cat([random(4, COSTS), 0.1 + 0.3 * random(5, EDGES).sigmoid()])


def differences(u: Tensor, weights: Tensor) -> Tensor:
    """Ku as a vector: weighted differences down and to the right, zero at the border."""
    image = u.reshape(LABELS, HEIGHT, WIDTH)
    down = torch.cat([image[:, 1:] - image[:, :-1], torch.zeros_like(image[:, :1])], dim=1)
    right = torch.cat([image[:, :, 1:] - image[:, :, :-1], torch.zeros_like(image[:, :, :1])], 2)
    return (weights.reshape(2, HEIGHT, WIDTH) * torch.stack([down, right], dim=1)).reshape(-1)


UNWEIGHTED = jacobian(lambda u: differences(u, torch.ones(EDGES, dtype=DOUBLE)), POTTS[:COSTS])


def primal_step(u: Tensor, p: Tensor, theta: Tensor) -> Tensor:
    cost, weights = theta[:COSTS], theta[COSTS:]
    pulled = UNWEIGHTED.T @ (weights.repeat(LABELS) * p)
    mirror = torch.log(u) - TAU * (pulled + cost)
    return torch.softmax(mirror.reshape(LABELS, -1), dim=0).reshape(-1)


def dual_step(ahead: Tensor, p: Tensor, theta: Tensor) -> Tensor:
    return torch.tanh(torch.atanh(p) + SIGMA * differences(ahead, theta[COSTS:]))


def iterates(theta: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    us = [torch.full((COSTS,), 1 / LABELS, dtype=DOUBLE)]
    ps = [torch.zeros(LABELS * EDGES, dtype=DOUBLE)]
    for _ in range(N):
        us.append(primal_step(us[-1], ps[-1], theta))
        ps.append(dual_step(2 * us[-1] - us[-2], ps[-1], theta))
    return us, ps


def potts_partials() -> list[PrimalDualPartials]:
    us, ps = iterates(POTTS)
    return [
        PrimalDualPartials(
            *jacobian(primal_step, (us[n], ps[n], POTTS)),
            *jacobian(dual_step, (2 * us[n + 1] - us[n], ps[n], POTTS)),
        )
        for n in range(N)
    ]


def ergodic_mean() -> dict[str, float]:
    """Erratum 2: the mean of u⁰, …, uᴺ; its gradient enters at every back-step."""

    def mean(theta: Tensor) -> Tensor:
        return torch.stack(iterates(theta)[0]).mean(0)

    def printed(partials: list[PrimalDualPartials], xi: Tensor) -> Tensor:
        """The mean of all w⁽ⁿ⁾, of which the first is 0."""
        running = [reverse_primal_dual(partials[-n:], xi) for n in range(1, N + 1)]
        return torch.stack(running).sum(0) / (N + 1)

    def right(partials: list[PrimalDualPartials], xi: Tensor) -> Tensor:
        """``averaged`` injects ξ/N; u⁰ does not move, so the share of each other is 1/(N + 1)."""
        return reverse_primal_dual(partials, xi * N / (N + 1), averaged=True)

    partials, xi = potts_partials(), jacobian(loss, mean(POTTS))
    truth = central_differences(lambda theta: loss(mean(theta)), POTTS)
    frozen = [partials[0]] * N
    return {
        "right": relative_error(right(partials, xi), truth),
        "printed": relative_error(printed(partials, xi), truth),
        "apart_when_frozen": relative_error(printed(frozen, xi), right(frozen, xi)),
    }


def printed_algorithm_3(
    partials: list[PrimalDualPartials], xi: Tensor, xi_dual: Tensor | None
) -> Tensor:
    """With the paper's indices, less the term that needs an iterate before the first.

    ``xi_dual`` is what the correction adds for a loss of p; None is the start as printed.
    """
    z, q, w = xi, torch.zeros(LABELS * EDGES, dtype=DOUBLE), torch.zeros_like(POTTS)
    if xi_dual is not None:
        q = xi_dual
        z = z + 2 * partials[-1].p_u.T @ q
    for n in reversed(range(N)):
        P = partials[n]
        w = w + P.u_theta.T @ z + P.p_theta.T @ q
        ahead = P.u_p.T @ z + P.p_p.T @ q
        z = P.u_u.T @ z - P.p_u.T @ q
        if n > 0:
            z = z + 2 * partials[n - 1].p_u.T @ ahead
        q = ahead
    return w


def algorithm_3() -> tuple[dict[str, float], dict[str, float]]:
    """Errata 3 and 4: a loss of u and p; the form whose indices are safe."""
    partials = potts_partials()
    us, ps = iterates(POTTS)
    xi, xi_dual = jacobian(loss, (us[-1], ps[-1]))
    both = central_differences(
        lambda theta: loss(iterates(theta)[0][-1], iterates(theta)[1][-1]), POTTS
    )
    primal = central_differences(lambda theta: loss(iterates(theta)[0][-1]), POTTS)
    of_u = jacobian(loss, us[-1])
    third = {
        "right": relative_error(printed_algorithm_3(partials, xi, xi_dual), both),
        "printed": relative_error(printed_algorithm_3(partials, xi, None), both),
        "printed_without_p": relative_error(printed_algorithm_3(partials, of_u, None), primal),
    }
    fourth = {
        "right": relative_error(reverse_primal_dual(partials, of_u), primal),
        "right_with_p": relative_error(reverse_primal_dual(partials, xi, xi_dual), both),
    }
    return third, fourth


# --- the rest -------------------------------------------------------------------------------------


def example_3(a: float = 0.25) -> dict[str, float]:
    """Erratum 9: the modulus of a·x log x is its least second derivative, at the right end."""

    def second(end: float) -> float:
        return float(hessian(lambda x: a * x * torch.log(x), torch.tensor(end, dtype=DOUBLE)))

    return {"a": a, "modulus_as_printed": second(1 / a), "modulus_on_the_right_interval": second(a)}


def segmentation_loss() -> dict[str, float]:
    """Erratum 12: least and largest value over the simplex of 3 labels, at its corners."""

    def value(u: Tensor) -> Tensor:
        return torch.logsumexp(u, dim=-1) - u[..., 0]

    corners = value(torch.eye(3, dtype=DOUBLE))
    inside = value(torch.softmax(3 * random(6, 10000, 3), dim=-1))
    if not (corners.min() <= inside.min() and inside.max() <= corners.max()):
        raise AssertionError("The extremes are not at the corners.")
    return {"least": float(corners.min()), "largest": float(corners.max())}


def boundary() -> dict[str, float]:
    """Erratum 13: the entropic fixed point where entries of the solution are 0."""

    def on(support: list[int]) -> Callable[[Tensor], Tensor]:
        """The minimiser over the entries of a support; the others are 0."""

        def solve(theta: Tensor) -> Tensor:
            S = MATRIX[:, support]
            x = torch.zeros(5, dtype=DOUBLE)
            return x.index_put((torch.tensor(support),), torch.linalg.solve(S.T @ S, S.T @ theta))

        return solve

    def step_partials(x: Tensor) -> StepPartials:
        return StepPartials(*jacobian(entropic_step, (x, TARGET)))

    def radius(x: Tensor) -> float:
        return float(torch.linalg.eigvals(step_partials(x).x).abs().max())

    solution = on([0, 1, 3])
    x = solution(TARGET)
    if not (x[[0, 1, 3]].min() > 0 and slope(x, TARGET)[[2, 4]].min() > 0):
        raise AssertionError("The solution is not strictly complementary on this support.")
    xi = jacobian(loss, x)
    closed = jacobian(solution, TARGET).T @ xi
    return {
        "right": relative_error(implicit(step_partials(x), xi), closed),
        "radius": radius(x),
        "radius_at_a_spurious_point": radius(on([0, 1])(TARGET)),
        "slack": float(slope(x, TARGET)[[2, 4]].min()),
    }


def compute() -> dict[str, Any]:
    """Every figure, by the number of its erratum."""
    third, fourth = algorithm_3()
    found = {
        "1": algorithm_2(),
        "2": ergodic_mean(),
        "3": third,
        "4": fourth,
        "9": example_3(),
        "12": segmentation_loss(),
        "13": boundary(),
    }
    if not all(math.isfinite(v) for part in found.values() for v in part.values()):
        raise AssertionError(f"Not every figure is a number: {found}")
    return found


def main() -> None:
    torch.set_num_threads(1)
    found = compute()
    RESULTS.write_text(
        json.dumps(provenance() | {"iterations": N, "errata": found}, indent=1) + "\n",
        encoding="utf-8",
    )
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
