"""Whether a point minimises what NumPy computes: no formula of legato takes part."""

import numpy as np


def minimises(objective, x, tolerance, draws=60, seed=0):
    """No random change of x, of any size, lowers the objective."""
    rng = np.random.default_rng(seed)
    least = objective(x)
    assert np.isfinite(least)
    for size in (1.0, 1e-1, 1e-2, 1e-3):
        for _ in range(draws):
            change = rng.normal(size=x.shape)
            if x.dtype.kind == "c":
                change = change + 1j * rng.normal(size=x.shape)
            if rng.random() < 0.5:  # along a few entries
                change *= rng.random(x.shape) < 0.3
            assert objective(x + size * change) >= least - tolerance, (size, least)


def is_prox(f, x, y, tau, tolerance):
    """Whether x minimises ½‖x − y‖² + τf(x), for f in NumPy."""
    minimises(lambda z: 0.5 * float((np.abs(z - y) ** 2).sum()) + tau * f(z), x, tolerance)
