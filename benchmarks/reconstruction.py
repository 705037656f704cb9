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
from collections.abc import Callable, Sequence
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
Run = Callable[[int, float | None], Tensor]
GRID = (1.0, 3.0, 10.0, 30.0, 100.0)


def energy(task: Deblurring, y: Tensor, x: Tensor) -> float:
    found = lg.SquaredDistance(y)(task.operator(x)) + lg.IsotropicTV(WEIGHT)(x)
    return float(found)


def timed(
    runs: dict[str, Callable[[], Any]], device: torch.device, rounds: int = 9
) -> dict[str, float]:
    """The median seconds of each, taken in turns, so that other load disturbs all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each[1:]) for name, each in seconds.items()}


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
    parser.add_argument("--grid", type=float, nargs="+", default=GRID, help="balances to try")
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

    runs: dict[str, Callable[[], Any]] = {}

    def enter(name: str, tried: dict[float | None, int | None], run: Run) -> None:
        balance = min((b for b in tried if tried[b]), key=lambda b: tried[b] or 0)
        count = tried[balance]
        assert count is not None
        rows[name] = {"iterations": count, "balance": balance}
        if len(tried) > 1:
            rows[name]["tried"] = {str(k): v for k, v in tried.items()}
        runs[name] = lambda: run(count, balance)
        print(name, rows[name], flush=True)

    def own(count: int, balance: float | None) -> Tensor:
        return ours(task, y, count, engine, balance)

    def counts(run: Run, grid: Sequence[float | None]) -> dict[float | None, int | None]:
        return {b: needed(lambda n, b=b: run(n, b), value, best) for b in grid}

    enter("legato, as it is", counts(own, (None,)), own)
    enter("legato", counts(own, options.grid), own)
    try:
        solvers = {balance: theirs(task, balance) for balance in options.grid}

        def other(count: int, balance: float | None) -> Tensor:
            assert balance is not None
            return solvers[balance](y, count)

        enter("deepinv", counts(other, options.grid), other)
    except ImportError as error:
        print(f"deepinv is not here: {error}")
    for name, seconds in timed(runs, device).items():
        rows[name]["seconds"] = seconds
    if "deepinv" in rows:
        for name in ("legato", "legato, as it is"):
            rows[name]["times faster"] = rows["deepinv"]["seconds"] / rows[name]["seconds"]
    print(rows, flush=True)
    if options.out is not None:
        record(
            options.out,
            {"load": load, "size": options.size, "close": CLOSE, "minimum": best} | rows,
            str(device),
        )


if __name__ == "__main__":
    main()
