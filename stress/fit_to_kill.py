"""A bilevel fit that saves itself after every step and ends with its numbers in a file.

    python stress/fit_to_kill.py FOLDER

Noise in the loss comes from torch's random numbers, whose state belongs to the checkpoint.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

import legato as lg
from legato import bilevel
from legato._support.files import write_text

STEPS = 200


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(30, 8, generator=generator, dtype=torch.float64)
    b = torch.randn(30, generator=generator, dtype=torch.float64)
    theta = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)

    def loss(inner: bilevel.InnerSolver) -> torch.Tensor:
        problem = lg.Composite(lg.LeastSquares(A[:20], b[:20]), lg.L1(F.softplus(theta)))
        gradient = lg.Implicit(lg.GMRES(tol=1e-10))
        stop = lg.Stop(2000, tol=1e-10)
        x = inner.solve(problem, lg.ForwardBackward(), gradient=gradient, stop=stop).x
        noisy = x + 0.01 * torch.randn(x.shape, dtype=x.dtype)
        return (A[20:] @ noisy - b[20:]).square().mean()

    make = functools.partial(torch.optim.Adam, lr=0.05)
    checkpoint = bilevel.Checkpoint(folder / "fit.pt")
    result = bilevel.fit(loss, theta, make, STEPS, checkpoint=checkpoint)
    numbers = {"theta": theta.tolist(), "loss": result.history.loss}
    write_text(folder / "results.json", json.dumps(numbers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
