"""Layers on a batch: each element as if it were alone, whatever the sizes of the others.

The truth beside the single calls is scipy's for least squares, so that a batch and its elements
cannot be wrong together.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

import legato as lg
import legato.nn as layers
from makers import rand, randn

RATIOS = (1.0, 0.1, 1e-2, 1e-4, 1e-6)
A = rand(8, 4, seed=1) + torch.eye(8, 4).double()
SIZES = torch.tensor(RATIOS).double()


def scaled(t):
    """A batch of the same data, each element a ratio of the first one's brightness."""
    return t * SIZES.reshape(-1, *(1,) * (t.ndim - 1))


def several(*shape, seed):
    return scaled(randn(len(RATIOS), *shape, seed=seed).abs() + 0.1)


def coder():
    torch.manual_seed(0)
    return layers.SparseCoding(6, 4, iterations=200).double()


def with_matrix(layer):
    return lambda data: layer(A, data)


def with_weights(layer):
    """Weights in proportion to the image, so that every element has work to do."""
    return lambda image: layer(image, 0.1 * image.detach().amax(tuple(range(1, image.ndim))))


def budgeted(layer):
    """A sum that is limited in proportion to the costs, so that every element meets its limit."""

    def program(c):
        return layer(-c, G=c.new_ones(1, 5), h=c.detach().sum(-1, keepdim=True), lo=0.0)

    return program


def reconstruction(regulariser, **settings):
    torch.manual_seed(0)
    blur = lg.Blur(torch.tensor([[0.0, 0.1, 0.0], [0.1, 0.5, 0.2], [0.0, 0.1, 0.0]]).double())
    return layers.Reconstruction(blur, regulariser.double(), iterations=60, **settings).double()


ENTROPY = lg.Entropy()
SOLVED = lg.Implicit(lg.GMRES(tol=1e-11))
STOPPED = "nonnegative, entropic, to a tolerance"
"""An element that has converged goes on with those that have not, to another iterate."""
LAYERS = {
    "nonnegative": (with_matrix(layers.NonNegativeLeastSquares()), several(8, seed=2)),
    "nonnegative, entropic": (
        with_matrix(layers.NonNegativeLeastSquares(geometry=ENTROPY)),
        several(8, seed=2),
    ),
    STOPPED: (
        with_matrix(layers.NonNegativeLeastSquares(600, geometry=ENTROPY, tol=1e-5)),
        several(8, seed=2),
    ),
    "nonnegative, entropic, implicit": (
        with_matrix(layers.NonNegativeLeastSquares(800, geometry=ENTROPY, gradient=SOLVED)),
        several(8, seed=2),
    ),
    "simplex": (with_matrix(layers.SimplexLeastSquares()), several(8, seed=3)),
    "simplex, entropic": (
        with_matrix(layers.SimplexLeastSquares(geometry=ENTROPY)),
        several(8, seed=3),
    ),
    "quadratic program": (
        lambda c: layers.QuadraticProgram()(torch.eye(5, dtype=c.dtype) + 0.8, -c, lo=0.0),
        several(5, seed=12),
    ),
    "linear program": (budgeted(layers.LinearProgram(layers.Ridge(0.5))), several(5, seed=13)),
    "sparse coding": (coder(), several(4, seed=4)),
    "matrix game": (lambda A: torch.cat(layers.MatrixGame()(A), -1), several(3, 4, seed=5)),
    "total variation": (with_weights(layers.TotalVariation(80)), several(2, 5, 6, seed=6)),
    "total variation, by the engine": (
        with_weights(layers.TotalVariation(80, kernel="reference")),
        several(2, 5, 6, seed=6),
    ),
    "analysis denoiser": (layers.AnalysisDenoiser(size=3).double(), several(1, 6, 5, seed=7)),
    "conditioned denoiser": (
        layers.AnalysisDenoiser(size=3, conditioned=True, interval=True).double(),
        several(1, 9, 8, seed=7),
    ),
    "reconstruction": (reconstruction(layers.TV(1e-3)), several(1, 6, 7, seed=14)),
    "reconstruction, weights read off the image": (
        reconstruction(layers.TV(layers.WeightMap(weight=1e-3, width=4))),
        several(1, 6, 7, seed=14),
    ),
    "reconstruction, images and fields": (
        reconstruction(layers.TGV(1e-3, 2e-3)),
        several(1, 6, 7, seed=14),
    ),
    "reconstruction, filters and a box": (
        reconstruction(layers.Filters(4, size=3, weight=1e-3), box=(0.0, 1.0)),
        several(1, 6, 7, seed=14),
    ),
    "potts": (lambda c: layers.Potts(30)(c, 0.3), several(3, 5, 6, seed=8)),
    "potts, by the engine": (
        lambda c: layers.Potts(30, kernel="reference")(c, 0.3),
        several(3, 5, 6, seed=8),
    ),
    "global layer": (
        lambda c: layers.GlobalLayer(layers.UniformWeights(0.4)).double()(c, c),
        several(3, 5, 6, seed=9),
    ),
    "contrast weights": (layers.ContrastWeights().double(), several(3, 5, 6, seed=10)),
    "similarity weights": (
        layers.SimilarityWeights(neighbours=8).double(),
        several(3, 5, 6, seed=12),
    ),
    "scale": (layers.Scale().double(), several(3, 5, 6, seed=11)),
}


def gradient(layer, x, cotangents):
    x = x.clone().requires_grad_()
    found = layer(x)
    (slope,) = torch.autograd.grad(found, x, cotangents(found))
    return found.detach(), slope


@pytest.mark.filterwarnings("ignore::legato.errors.NotConvergedWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_treats_each_element_as_if_alone(name):
    """Each element is compared on its own scale: a small one does not hide behind a large one."""
    layer, x = LAYERS[name]
    tolerance = 0.02 if name == STOPPED else 1e-6
    together = gradient(layer, x, lambda found: randn(*found.shape, seed=20))
    cotangents = randn(*together[0].shape, seed=20)
    for i, ratio in enumerate(RATIOS):
        alone = gradient(layer, x[i : i + 1], lambda found, i=i: cotangents[i : i + 1])
        for one, other, what in zip(alone, together, ("value", "gradient"), strict=True):
            size = float(one.abs().max())
            apart = float((one[0] - other[i]).abs().max())
            assert apart <= tolerance * size, (
                f"{what} of the element {ratio:g}: {apart / size:.1e} off"
            )


@pytest.mark.parametrize("geometry", [lg.Euclidean(), ENTROPY], ids=repr)
def test_every_row_of_least_squares_is_solved(geometry):
    b = scaled(rand(len(RATIOS), 4, seed=12) @ A.mT + 0.05 * randn(len(RATIOS), 8, seed=13))
    found = layers.NonNegativeLeastSquares(4000, geometry=geometry)(A, b)
    for x, row in zip(found, b, strict=True):
        right = nnls(A.numpy(), row.numpy())[0]
        np.testing.assert_allclose(x, right, atol=2e-3 * np.abs(right).max())


OPERATORS = {
    "Identity": lg.Identity(),
    "Diagonal": lg.Diagonal(torch.tensor([1.0, 2.0, 0.5, 3.0]).double()),
    "Dense": lg.Dense(torch.eye(4).double() + 0.1),
    "one matrix each": lg.Dense(torch.eye(4).double() + 0.2 * rand(len(RATIOS), 4, 4, seed=15)),
    "Convolution": lg.Convolution(torch.tensor([[[0.2, 1.0, 0.1]]]).double(), "circular"),
    "Composition": lg.Dense(torch.eye(4).double() + 0.1) @ lg.Diagonal(torch.ones(4).double()),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_element_is_explained_through_every_operator(name):
    """Data that a positive x explains exactly, in ratios of brightness down to 1e-6."""
    K = OPERATORS[name]
    axes = (1, 4) if name == "Convolution" else (4,)
    x = several(*axes, seed=16)
    found = layers.NonNegativeLeastSquares(2000, geometry=ENTROPY)(K, K(x))
    torch.testing.assert_close(scaled_back(found), scaled_back(x), atol=1e-3, rtol=0)


def scaled_back(t):
    return t / SIZES.reshape(-1, *(1,) * (t.ndim - 1))


def test_backtracking_gives_each_element_its_own_step():
    """Lipschitz constants differ by 1e6: one step for all would leave the flat ones behind."""
    curvature = SIZES.reshape(-1, 1)
    problem = lg.Composite(lg.SquaredDistance(randn(5, 3, seed=14), curvature))
    algorithm = lg.ForwardBackward(lg.Backtracking(initial=4.0, grow=2.0))
    found = lg.solve(problem, algorithm, stop=lg.Stop(60))
    torch.testing.assert_close(found.x, problem.smooth.y)
    steps = found.steps["step"].flatten()
    assert bool((steps * SIZES > 0.2).all() or (found.residual < 1e-12).all())


def test_every_public_layer_is_held_against_this_law():
    """A new layer joins by a line above; outputs, states and losses are no layers."""
    ours = {n for n in dir(layers) if isinstance(getattr(layers, n), type)}
    ours = {n for n in ours if issubclass(getattr(layers, n), torch.nn.Module)}
    seen = {"NonNegativeLeastSquares", "SimplexLeastSquares", "SparseCoding", "MatrixGame"}
    seen |= {"TotalVariation", "AnalysisDenoiser", "Potts", "GlobalLayer", "ContrastWeights"}
    seen |= {"Scale", "UniformWeights", "QuadraticProgram", "LinearProgram", "SimilarityWeights"}
    seen |= {"Reconstruction", "TGV", "TV", "Filters", "WeightMap", "Weight"}
    elsewhere = {"FineFeatures", "LearnedEdges", "SoftmaxLoss"}  # torch's own convolutions, losses
    elsewhere |= {"ConvexRidges"}  # a term for each image, as Filters are
    elsewhere |= {"DeepinvPrior"}  # a regulariser's values, and Reconstruction for its prox
    assert ours == seen | elsewhere
