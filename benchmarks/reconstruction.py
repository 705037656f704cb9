"""Deblurring by total variation: legato and deepinv, one energy, one stopping gap.

    python benchmarks/reconstruction.py [--device cuda] [--out results.json] [--deepinv WHEEL]

Both minimise ½‖k * x − y‖² + λ|∇x| of a picture of 512×512 pixels by Chambolle and Pock's method
with the proximal map of the data term, from y. Each is stopped after as many iterations as it needs
for an energy at most 1e-4 above the minimum, relatively; that is found by 20 000 iterations.
Both are timed with the fastest ratio of primal to dual steps of one grid, and legato with its own
beside. The load of the machine when it started is noted. --deepinv names deepinv's wheel, or the
folder where it was unpacked: nothing of it is compiled, and packages that it imports and does not
call here get stand-ins. Without deepinv only legato is timed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers.stand_ins import with_stand_ins
from record import record
from torch import Tensor

import legato as lg
from legato.nn import TV, Reconstruction
from legato.studies.denoise.images import draw_picture
from legato.studies.reconstruct.tasks import Deblurring, gaussian

WEIGHT = 0.0038
CLOSE = 1e-4
GRID = (1.0, 3.0, 10.0, 30.0, 100.0)


def energy(task: Deblurring, y: Tensor, x: Tensor) -> float:
    found = lg.SquaredDistance(y)(task.operator(x)) + lg.IsotropicTV(WEIGHT)(x)
    return float(found)


def timed(run: Callable[[], Any], device: torch.device, repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def needed(
    run: Callable[[int], Tensor], value: Callable[[Tensor], float], best: float
) -> int | None:
    """Iterations until the energy is close enough, to within a tenth."""
    count = 10
    while (value(run(count)) - best) / best > CLOSE:
        if count > 3000:
            return None
        count = int(count * 1.1) + 1
    return count


def ours(
    task: Deblurring, y: Tensor, count: int, engine: lg.Engine, balance: float | None = None
) -> Tensor:
    layer = Reconstruction(
        task.operator, TV(WEIGHT), first=lambda y: y, iterations=count, balance=balance
    )
    with torch.no_grad(), engine:
        return layer.to(y.device)(y)


def theirs(task: Deblurring, balance: float) -> Callable[[Tensor, int], Tensor]:
    import deepinv

    tv = deepinv.optim.prior.TVPrior()
    prior = deepinv.optim.prior.L12Prior(l2_axis=-1)
    kernel = task.kernel[None, None]
    step = balance / 8**0.5

    def run(y: Tensor, count: int) -> Tensor:
        physics = deepinv.physics.BlurFFT(tuple(y.shape[1:]), filter=kernel, device=y.device)
        model = deepinv.optim.PDCP(
            data_fidelity=deepinv.optim.L2(), prior=prior, K=tv.nabla, K_adjoint=tv.nabla_adjoint,
            stepsize=step, stepsize_dual=1 / (8 * step), lambda_reg=WEIGHT, g_first=True,
            max_iter=count, early_stop=False,
            custom_init=lambda y, physics: (y, y, torch.zeros_like(tv.nabla(y))),
        )  # fmt: skip
        with torch.no_grad():
            found = model(y, physics)
        assert isinstance(found, Tensor)
        return found

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--deepinv", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.deepinv is not None:
        sys.path.insert(0, str(options.deepinv))
        print("stand-ins for", with_stand_ins())
    device, load = torch.device(options.device), os.getloadavg()[0]
    task = Deblurring("gauss", gaussian(1.6).to(device))
    clean = draw_picture(0, options.size, options.size)[None, None].to(device)
    y = task.simulate(clean, torch.Generator().manual_seed(0))
    engine: lg.Engine = lg.Replayed() if device.type == "cuda" else lg.Eager()
    best = energy(task, y, ours(task, y, 20_000 if device.type == "cuda" else 3000, engine))
    rows: dict[str, Any] = {}

    def value(x: Tensor) -> float:
        return energy(task, y, x)

    count = needed(lambda n: ours(task, y, n, engine), value, best)
    assert count is not None
    seconds = timed(lambda: ours(task, y, count, engine), device)
    rows["legato, as it is"] = {"iterations": count, "seconds": seconds}
    print("legato, as it is", rows["legato, as it is"], flush=True)
    own: dict[float, int | None] = {}
    for balance in GRID:
        own[balance] = needed(lambda n, b=balance: ours(task, y, n, engine, b), value, best)
        print("legato", balance, own[balance], flush=True)
    fastest, count = min(((b, n) for b, n in own.items() if n), key=lambda pair: pair[1])
    seconds = timed(lambda: ours(task, y, count, engine, fastest), device)
    rows["legato"] = {"iterations": count, "seconds": seconds, "balance": fastest,
                      "tried": {str(k): v for k, v in own.items()}}  # fmt: skip
    try:
        tried = {}
        for balance in GRID:
            run = theirs(task, balance)
            steps = needed(lambda n, run=run: run(y, n), value, best)
            tried[balance] = steps
            print("deepinv", balance, steps, flush=True)
        balance = min((b for b, n in tried.items() if n), key=lambda b: tried[b])
        run, steps = theirs(task, balance), tried[balance]
        seconds = timed(lambda: run(y, steps), device)
        rows["deepinv"] = {"iterations": steps, "seconds": seconds, "balance": balance,
                           "tried": {str(k): v for k, v in tried.items()}}  # fmt: skip
        for name in ("legato", "legato, as it is"):
            rows[name]["times faster"] = seconds / rows[name]["seconds"]
        print(rows, flush=True)
    except ImportError as error:
        print(f"deepinv is not here: {error}")
    if options.out is not None:
        record(
            options.out,
            {"load": load, "size": options.size, "close": CLOSE, "minimum": best} | rows,
            str(device),
        )


if __name__ == "__main__":
    main()
