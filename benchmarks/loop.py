"""What does `solve` cost beyond the steps themselves?

The same iterations written by hand in a for-loop, and through `legato.solve` with `Unroll`, on the
same tensors, forward and backward, interleaved in one run.
Usage: python benchmarks/loop.py [OUT.json]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from harness import Task, arguments, record, take_turns
from torch import Tensor
from torch.nn.functional import pad

import legato as lg

ITERATIONS = 100
ROUNDS = 25


def lasso(n: int, p: int) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(0)
    A, b = torch.randn(n, p, generator=generator), torch.randn(n, generator=generator)
    step = 1 / float(torch.linalg.matrix_norm(A, ord=2)) ** 2
    data = lg.LeastSquares(A, b)

    def by_hand(weight: Tensor) -> Tensor:
        x = torch.zeros(p)
        for _ in range(ITERATIONS):
            y = x - step * (A.mT @ (A @ x - b))
            threshold = step * weight
            x = y - torch.clamp(y, -threshold, threshold)
        return x

    def by_solve(weight: Tensor) -> Tensor:
        problem = lg.Composite(data, lg.L1(weight))
        return lg.solve(problem, lg.ForwardBackward(step), stop=lg.Stop(ITERATIONS)).x

    return by_hand, by_solve


def total_variation(size: int) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    noisy = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    tau = sigma = 8**-0.5

    def gradient(u: Tensor) -> Tensor:
        return torch.stack([pad(torch.diff(u, dim=0), (0, 0, 0, 1)), pad(torch.diff(u), (0, 1))])

    def divergence(p: Tensor) -> Tensor:
        down, right = p[0, :-1], p[1, :, :-1]
        vertical = pad(down, (0, 0, 1, 0)) - pad(down, (0, 0, 0, 1))
        return vertical + pad(right, (1, 0)) - pad(right, (0, 1))

    def by_hand(weight: Tensor) -> Tensor:
        u, p = torch.zeros(size, size), torch.zeros(2, size, size)
        for _ in range(ITERATIONS):
            new = (u - tau * divergence(p) + tau * noisy) / (1 + tau)
            p = torch.clamp(p + sigma * gradient(2 * new - u), -weight, weight)
            u = new
        return u

    def by_solve(weight: Tensor) -> Tensor:
        data = lg.SquaredDistance(noisy)
        problem = lg.Saddle(lg.Differences(), lg.L1(weight), nonsmooth=data)
        return lg.solve(problem, lg.PrimalDual(tau, sigma), stop=lg.Stop(ITERATIONS)).x

    return by_hand, by_solve


PROBLEMS = {
    "lasso 500 × 200": lambda: lasso(500, 200),
    "lasso 50 × 20": lambda: lasso(50, 20),
    "TV 128 × 128": lambda: total_variation(128),
    "TV 32 × 32": lambda: total_variation(32),
}


def task(function: Callable[[Tensor], Tensor], *, backward: bool) -> Task:
    def run() -> None:
        weight = torch.tensor(0.1, requires_grad=True)
        x = function(weight)
        if backward:
            x.square().sum().backward()

    return run


def main() -> None:
    given = arguments(__doc__ or "", "out/loop.json").parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for name, make in PROBLEMS.items():
        by_hand, by_solve = make()
        weight = torch.tensor(0.1)
        torch.testing.assert_close(by_hand(weight), by_solve(weight), rtol=1e-4, atol=1e-5)
        for backward in (False, True):
            tasks = {"hand": by_hand, "solve": by_solve}
            times = take_turns({k: task(f, backward=backward) for k, f in tasks.items()}, ROUNDS)
            row = {
                "problem": name,
                "iterations": ITERATIONS,
                "measured": "forward + backward" if backward else "forward",
                "hand_ms": times["hand"].median,
                "solve_ms": times["solve"].median,
                "ratio_of_medians": times["solve"].median / times["hand"].median,
                "ratio_of_minima": times["solve"].least / times["hand"].least,
            }
            rows.append(row)
            print(
                f"{name:18s} {row['measured']:19s} by hand {row['hand_ms']:7.2f} ms   "
                f"solve {row['solve_ms']:7.2f} ms   ratio {row['ratio_of_medians']:.3f}"
            )
    record(given.out, {"rounds": ROUNDS, "rows": rows})
    print(f"Written to {given.out}")


if __name__ == "__main__":
    main()
