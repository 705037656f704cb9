"""Iterations of the primal–dual algorithm as it is, and with restarts, balance and scaling.

    python benchmarks/adaptive.py [out.json] [--lp FOLDER]

A run counts when its answer is right, not when it says so: for energies when the objective is
within 1e-6 of the lowest that the two last contestants find in all their iterations, relative to
its fall from the start; for linear programs (FOLDER holds them as gzipped MPS files, and HiGHS
solves them) when the objective, the rows and the bounds are right to 1e-4, as benchmarks/netlib.py
measures them. Looks every 10 iterations; None where the limit was not enough.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from record import record

import legato as lg

LIMIT = 5_000
EVERY = 10
PROGRAMS = ("afiro", "sc50b", "blend", "recipe")
RESTART, BALANCE, SCALING = lg.Restart(), lg.AdaptiveBalance(), lg.Ruiz()
WAYS = {
    "fixed": {},
    "balance": {"balance": BALANCE},
    "restart": {"restart": RESTART},
    "scaling": {"scaling": SCALING},
    "restart, balance": {"restart": RESTART, "balance": BALANCE},
    "restart, balance, scaling": {"restart": RESTART, "balance": BALANCE, "scaling": SCALING},
}
CHOSEN = "restart, balance"
"""What solve takes by itself where there is a tolerance."""


# --- problems -------------------------------------------------------------------------------------


def portfolio():
    """At its natural scale: returns of 0.001 beside shares of 1."""
    g = np.random.default_rng(3)
    M = 0.01 * g.standard_normal((60, 12))
    data = M.T @ M / 60, 0.001 * g.random(12), np.full(12, 1 / 12)
    covariance, returns, held = map(torch.tensor, data)
    return lg.Quadratic(covariance, -returns) + lg.L1(1e-4).shifted(held) + lg.Simplex()


def signal(scale=1.0):
    g = np.random.default_rng(0)
    y = np.repeat(g.standard_normal(10), 20) + 0.3 * g.standard_normal(200)
    return lg.SquaredDistance(scale * torch.tensor(y)) + lg.L1(scale) @ lg.Differences((-1,))


def image():
    g = np.random.default_rng(0)
    y = np.kron(g.standard_normal((6, 6)), np.ones((8, 8))) + 0.3 * g.standard_normal((48, 48))
    return lg.SquaredDistance(torch.tensor(y)) + lg.IsotropicTV(0.2)


def fused_lasso():
    g = np.random.default_rng(1)
    A, w = g.standard_normal((100, 60)), np.repeat([0.0, 1.0, 0.0, -2.0, 0.0, 0.5], 10)
    b = A @ w + 0.5 * g.standard_normal(100)
    data = lg.LeastSquares(torch.tensor(A), torch.tensor(b))
    return data + lg.L1(1.0) + lg.L1(4.0) @ lg.Differences((-1,))


def least_deviations():
    g = np.random.default_rng(5)
    A = g.standard_normal((60, 20)) * np.logspace(0, 1, 20)
    b = A @ g.standard_normal(20) + g.standard_t(2, 60)
    penalty = lg.L1().shifted(torch.tensor(b))
    return lg.Saddle(torch.tensor(A), penalty, nonsmooth=lg.L1(0.1))


ENERGIES = {
    "portfolio, 12 assets": portfolio,
    "total variation, 200": signal,
    "total variation, 200, data of 1000": lambda: signal(1000.0),
    "isotropic total variation, 48×48": image,
    "fused lasso, 100×60": fused_lasso,
    "least deviations, 60×20": least_deviations,
}


def program(path):
    """A linear program as a saddle-point problem, and how wrong a point is."""
    from netlib import errors, read

    data, optimum = read(path)
    A, lower = np.vstack([data["A"], data["G"]]), np.full(len(data["h"]), -np.inf)
    ends = np.concatenate([data["b"], lower]), np.concatenate([data["b"], data["h"]])
    lo, hi, c, low, high = map(torch.tensor, (*ends, data["c"], data["lo"], data["hi"]))
    problem = lg.Saddle(
        lg.Sparse(torch.tensor(A).to_sparse_csr()),
        lg.Box(lo, hi),
        nonsmooth=lg.Linear(c) + lg.Box(low, high),
    )
    return problem, lambda x: max(errors(data, optimum, x.numpy()).values())


# --- counting -------------------------------------------------------------------------------------


def count(problem, way, error, tol, limit=LIMIT):
    """Iterations until the error is at most tol, with the balance found."""
    algorithm = lg.PrimalDual(**WAYS[way])
    with torch.no_grad():
        state = algorithm.init(problem, None)
        for number in range(1, limit + 1):
            state = algorithm.step(problem, state)
            if number % EVERY == 0 and error(algorithm.solution(state)) <= tol:
                balance = algorithm.steps(problem, state).get("balance")
                return number, None if balance is None else float(balance)
    return None, None


def lowest(problem):
    """The lowest feasible objective that the fastest ways find."""
    found = []
    for way in list(WAYS)[-2:]:
        algorithm = lg.PrimalDual(**WAYS[way])
        with torch.no_grad():
            state = algorithm.init(problem, None)
            for _ in range(LIMIT):
                state = algorithm.step(problem, state)
            found.append(float(problem.objective(algorithm.solution(state))))
    return min(found)


def energy_row(make):
    problem = make()
    problem = problem if isinstance(problem, lg.Saddle) else lg.split(problem)
    start = lg.PrimalDual().init(problem, None)
    best, begin = lowest(problem), float(problem.objective(start.x))
    fall = begin - best

    def error(x):
        return (float(problem.objective(x)) - best) / fall

    return {way: count(problem, way, error, 1e-6) for way in WAYS}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", nargs="?", type=Path, default=None)
    parser.add_argument("--lp", type=Path, help="the folder of linear programs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {name: energy_row(make) for name, make in ENERGIES.items()}
    for name in PROGRAMS if options.lp else ():
        problem, error = program(options.lp / f"{name}.mps.gz")
        rows[name] = {way: count(problem, way, error, 1e-4) for way in WAYS}
    results = {"limit": LIMIT, "every": EVERY, "chosen with a tolerance": CHOSEN}
    results["iterations"] = {k: {way: n for way, (n, _) in row.items()} for k, row in rows.items()}
    results["balance"] = {k: row[CHOSEN][1] for k, row in rows.items()}
    for name, row in results["iterations"].items():
        print(f"{name:36}", *(f"{row[way] or '—':>8}" for way in WAYS))
    if options.out is not None:
        record(options.out, results)


if __name__ == "__main__":
    main()
