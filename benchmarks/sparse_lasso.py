"""LassoBilevel and scikit-learn's LassoCV on one sparse design, 2000×8000 with 1 % of its entries.

    python benchmarks/sparse_lasso.py [out.json]

Both choose one penalty by the mean squared error on five folds, in turns, on one thread; LassoCV
with its own grid of 100 penalties and its own tolerance, LassoBilevel between the points of its
walk and to machine precision. The errors are on rows that neither has seen.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
from record import record
from scipy import sparse
from sklearn.linear_model import LassoCV
from threadpoolctl import threadpool_limits

from legato.sklearn import LassoBilevel

ROWS, FEATURES, DENSITY, RELEVANT = 2000, 8000, 0.01, 40


def draw(rng, rows):
    return sparse.random_array(
        (rows, FEATURES), density=DENSITY, rng=rng, data_sampler=rng.standard_normal, format="csc"
    )


def data(seed=0):
    rng = np.random.default_rng(seed)
    X, fresh, w = draw(rng, ROWS), draw(rng, ROWS), np.zeros(FEATURES)
    w[rng.choice(FEATURES, RELEVANT, replace=False)] = rng.standard_normal(RELEVANT)
    y, truth = X @ w, fresh @ w
    return X, y + 0.3 * y.std() * rng.standard_normal(ROWS), fresh, truth


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", nargs="?", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    X, y, fresh, truth = data()
    makers = {"LassoBilevel": lambda: LassoBilevel(cv=5), "LassoCV": lambda: LassoCV(cv=5)}
    rows = {name: {"seconds": []} for name in makers}
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        for _ in range(options.rounds):
            for name, make in makers.items():
                begun = time.process_time()
                model = make().fit(X, y)
                rows[name]["seconds"].append(time.process_time() - begun)
                rows[name]["alpha"] = float(model.alpha_)
                rows[name]["error on new rows"] = float(
                    np.mean((model.predict(fresh) - truth) ** 2)
                )
    times = {name: statistics.median(row["seconds"]) for name, row in rows.items()}
    ratio = times["LassoBilevel"] / times["LassoCV"]
    for name, row in rows.items():
        print(name, row)
    print(f"LassoBilevel takes {ratio:.2f} of the time of LassoCV")
    if options.out is not None:
        record(options.out, {"seed": 0, "clock": "processor", "ratio": ratio, **rows})


if __name__ == "__main__":
    main()
