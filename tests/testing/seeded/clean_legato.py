"""Layers of legato itself: what the library ships has to pass, too."""

import torch

import legato as lg
from makers import rand, randn
from testing.seeded.case import Clean, positive_definite


def _case(kind, function, inputs, batch=(0,), name=None, **known):
    return Clean(name or kind, kind, lambda: function, inputs, batch, **known)


def _dictionary(y):
    return (randn(y.shape[-1], 4, seed=7) / y.shape[-1] ** 0.5).to(y)


def lasso(y, weight):
    energy = lg.LeastSquares(lg.Dense(_dictionary(y)), y) + lg.L1(weight)
    return lg.solve(energy, gradient=lg.Implicit(lg.Direct()), stop=lg.Stop(300)).x


def unrolled_lasso(y, weight):
    step = lg.ForwardBackward(step_size=0.2, inertia=0.0)
    return lg.solve(
        lg.LeastSquares(lg.Dense(_dictionary(y)), y) + lg.L1(weight), step, stop=lg.Stop(25)
    ).x


def simplex_prox(y):
    return lg.Simplex().prox(y)


def box_quadratic(c):
    Q = positive_definite(4, 4, seed=40).to(c)
    return lg.solve(
        lg.Quadratic(lg.Dense(Q), c) + lg.Box(-0.5, 0.5),
        gradient=lg.Implicit(lg.Direct()),
        stop=lg.Stop(300),
    ).x


def _double(make):
    """A layer of legato with the same parameters each time, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double()


def _first(layer):
    return lambda A: layer(A)[0]


def _noisy_images():
    return randn(2, 1, 5, 5, seed=50), torch.tensor(0.2, dtype=torch.float64)


def _costs():
    return randn(2, 3, 4, 4, seed=51), 0.1 + rand(1, 1, 2, 4, 4, seed=52)


def _data():
    return randn(3, 6, 4, seed=53), randn(3, 6, seed=54)


def _payoffs():
    return (randn(2, 3, 4, seed=55),)


def _layer(kind, make, inputs, batch=(0,), name=None, **known):
    return Clean(name or kind, kind, make, inputs, batch, **known)


LEGATO = [
    _case(
        "legato: lasso, implicit", lasso, lambda: (randn(3, 6, seed=41), torch.tensor(0.3).double())
    ),
    _case(
        "legato: lasso, unrolled",
        unrolled_lasso,
        lambda: (randn(3, 6, seed=42), torch.tensor(0.3).double()),
    ),
    _case("legato: simplex", simplex_prox, lambda: (randn(3, 5, seed=43),)),
    _case("legato: box, implicit", box_quadratic, lambda: (randn(3, 4, seed=44),)),
    *(
        _layer(
            "legato: total variation",
            lambda n=n, iso=iso: lg.nn.TotalVariation(n, isotropic=iso, kernel="reference"),
            _noisy_images,
            name=f"legato: total variation, {n} steps, isotropic={iso}",
        )
        for n in (3, 30)
        for iso in (True, False)
    ),
    _layer(
        "legato: total variation, implicit",
        lambda: lg.nn.TotalVariation(400, kernel="reference", gradient=lg.Implicit()),
        _noisy_images,
    ),
    *(
        _layer(
            "legato: potts",
            lambda n=n: lg.nn.Potts(n, tau=0.2, sigma=0.2, kernel="reference"),
            _costs,
            name=f"legato: potts, {n} steps",
        )
        for n in (2, 15)
    ),
    _layer(
        "legato: potts, entropy",
        lambda: lg.nn.Potts(15, tau=0.2, sigma=0.2, epsilon=0.1, kernel="reference"),
        _costs,
    ),
    _layer(
        "legato: sparse coding",
        lambda: _double(lambda: lg.nn.SparseCoding(6, 5, iterations=30)),
        lambda: (randn(3, 5, seed=56),),
        follows=False,
    ),
    _layer(
        "legato: sparse coding",
        lambda: _double(lambda: lg.nn.SparseCoding(6, 5, iterations=8, nonnegative=True)),
        lambda: (randn(3, 5, seed=57),),
        name="legato: sparse coding, z ≥ 0",
        follows=False,
    ),
    _layer(
        "legato: non-negative least squares",
        lambda: lg.nn.NonNegativeLeastSquares(200, gradient=lg.Implicit(lg.Direct())),
        _data,
        (0, 1),
    ),
    _layer(
        "legato: simplex least squares",
        lambda: lg.nn.SimplexLeastSquares(200, gradient=lg.Implicit(lg.Direct())),
        _data,
        (0, 1),
    ),
    _layer("legato: matrix game", lambda: _first(lg.nn.MatrixGame(0.5, iterations=150)), _payoffs),
    _layer(
        "legato: analysis denoiser",
        lambda: _double(lambda: lg.nn.AnalysisDenoiser(size=3, iterations=10, weight=0.1)),
        lambda: (randn(2, 1, 5, 5, seed=58),),
        follows=False,
    ),
    _layer(
        "legato: contrast weights",
        lambda: _double(lg.nn.ContrastWeights),
        lambda: (rand(2, 3, 4, 4, seed=59),),
        follows=False,
    ),
    _layer(
        "legato: similarity weights",
        lambda: _double(lg.nn.SimilarityWeights),
        lambda: (rand(2, 3, 4, 4, seed=60),),
        follows=False,
    ),
]
