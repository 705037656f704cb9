"""The worst gradients among 65 536 programs of 8 variables and 8 rows, in 60 digits.

    python benchmarks/program_errors.py

The programs of ``programs.py``, a few thousand at a time. Its error of a gradient is relative and
against a dense solve in float64, which is a bad judge where the gradient is nearly zero or the
system ill-conditioned. Here the programs that look worst are solved again by mpmath, as equations
on their active rows: how large the gradient is, how wrong ours is, and how wrong the judge.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import mpmath
import torch
from programs import _FLOOR, legato, make, times
from record import record
from torch import Tensor

RESULTS = Path(__file__).parent / "results" / "program_errors_cpu.json"
SIZE, N = 65536, 8
_PART = 4096
_SHOWN = 3


def judged(data: tuple[Tensor, ...], z: Tensor, x: Tensor) -> Tensor:
    """The gradient in c by the equations that ``programs.py`` solves in float64."""
    Q, _, G, h, w = data
    J = torch.zeros(len(w), 2 * N, 2 * N, dtype=Q.dtype)
    J[:, :N, :N], J[:, :N, N:] = Q, G.mT
    J[:, N:, :N], J[:, N:, N:] = z[..., None] * G, torch.diag_embed(times(G, x) - h)
    return -torch.linalg.solve(J.mT, torch.cat([w, torch.zeros_like(h)], -1))[:, :N]


def exact(data: tuple[Tensor, ...], active: Tensor) -> Tensor:
    """The gradient in c of one program: −v, with Qv + Wᵀu = w and Wv = 0 on its active rows W."""
    Q, _, G, _, w = data
    W = G[active]
    k = len(W)
    system = torch.zeros(N + k, N + k, dtype=Q.dtype)
    system[:N, :N], system[:N, N:], system[N:, :N] = Q, W.T, W
    right = torch.cat([w, w.new_zeros(k)])
    with mpmath.workdps(60):
        found = mpmath.lu_solve(mpmath.matrix(system.tolist()), mpmath.matrix(right.tolist()))
        return -torch.tensor([float(v) for v in found[:N]], dtype=Q.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    data = make(SIZE, N, N, "cpu")
    parts: dict[str, list[Tensor]] = {"ours": [], "judge": [], "single": [], "z": []}
    for k in range(0, SIZE, _PART):
        part = tuple(v[k : k + _PART] for v in data)
        done, gradients = legato(part, True)
        parts["ours"].append(gradients[1])
        parts["z"].append(done.z)
        parts["judge"].append(judged(part, done.z, done.x.detach()))
        single = legato(tuple(v.float() for v in part), True)[1][1]
        parts["single"].append(single.double())
    ours, judge, single, z = (torch.cat(parts[k]) for k in ("ours", "judge", "single", "z"))
    w = data[4].norm(dim=-1)
    relative = {
        "float64": (ours - judge).norm(dim=-1) / judge.norm(dim=-1),
        "float32": (single - ours).norm(dim=-1) / ours.norm(dim=-1).clamp(min=1e-300),
    }
    found: dict[str, Any] = {"programs": SIZE, "variables": N, "rows": N, "floor": _FLOOR}
    for name, error in relative.items():
        rows = []
        for k in error.argsort(descending=True)[:_SHOWN].tolist():
            active = z[k] > 0
            truth = exact(tuple(v[k] for v in data), active)
            mine = ours[k] if name == "float64" else single[k]
            size = max(float(truth.norm()), _FLOOR * float(w[k]))
            rows.append(
                {
                    "instance": k,
                    "active rows": int(active.sum()),
                    "as programs.py measured it": float(error[k]),
                    "length of w": float(w[k]),
                    "length of the gradient": float(truth.norm()),
                    "ours is wrong by": float((mine - truth).norm()),
                    "the judge is wrong by": float((judge[k] - truth).norm()),
                    "ours, relative to the gradient or the floor": float(
                        (mine - truth).norm() / size
                    ),
                }
            )
        found[name] = {"above 1e-9": int((error > 1e-9).sum()), "worst": rows}
        print(name, found[name], flush=True)
    record(options.out, found)


if __name__ == "__main__":
    main()
