"""Whatever holds a tensor sees it as it is now, however it was changed since the last call.

A used object and a fresh one are changed in the same way; from then on they must agree exactly.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.nn.utils.parametrize import register_parametrization

import legato as lg
import legato.nn as layers
from legato._support.holding import held_tensors
from legato.testing.sampling import apart
from makers import operators, rand, randn


def double_data(tensors):
    for t in tensors:
        t.data.mul_(2)


def copy_in(tensors):
    with torch.no_grad():
        for t in tensors:
            t.copy_(3 * t + 0.1)


def as_one_vector(tensors):
    with torch.no_grad():
        vector_to_parameters(2.5 * parameters_to_vector(tensors), tensors)


def replace_data(tensors):
    """The idiom of averaged weights: another storage, and the first one is freed."""
    for t in tensors:
        t.data = 1.5 * t.data.clone()


def swap(tensors):
    for t in tensors:
        torch.utils.swap_tensors(t, like(t, 0.5 * t.detach() - 0.2))


def like(t, values):
    return nn.Parameter(values) if isinstance(t, nn.Parameter) else values


CHANGES = (double_data, copy_in, as_one_vector, replace_data, swap)


def floats(thing):
    found = {id(h.tensor): h.tensor for h in held_tensors(thing) if h.tensor.is_floating_point()}
    return list(found.values())


OPERATORS = [name for name, case in operators().items() if floats(case.operator)]


def seen_of(operator, x):
    y = operator(x)
    return operator.norm(x), y, operator.adjoint(y)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name, change):
    used, fresh = operators()[name], operators()[name]
    x = used.point(0)
    seen_of(used.operator, x)
    for case in (used, fresh):
        change(floats(case.operator))
    for now, right in zip(*(seen_of(c.operator, x) for c in (used, fresh)), strict=True):
        assert apart(now, right) == 0


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_the_norm_is_that_of_the_matrix_as_it_is(change):
    A = randn(6, 4, seed=1)
    K = lg.Dense(A)
    K.norm()
    K.gram()
    change([A])
    torch.testing.assert_close(K.norm(), torch.linalg.matrix_norm(A, 2))
    torch.testing.assert_close(K.gram(), A.mT @ A)


@pytest.mark.parametrize(
    "algorithm", [lg.ForwardBackward(), lg.Newton()], ids=lambda a: type(a).__name__
)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_solve_after_a_change_against_lstsq(algorithm, change):
    A, b = randn(8, 3, seed=2), randn(8, seed=3)
    problem = lg.Composite(lg.LeastSquares(A, b))
    lg.solve(problem, algorithm, stop=lg.Stop(20))
    change([A])
    right = torch.linalg.lstsq(A, b.unsqueeze(-1)).solution[:, 0]
    found = lg.solve(problem, algorithm, stop=lg.Stop(5000, tol=1e-12)).x
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-8)


def test_a_gram_matrix_keeps_the_tangent_of_forward_mode():
    A, direction = randn(4, 3, seed=4), randn(4, 3, seed=5)
    K = lg.Dense(A)
    K.gram()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(A, direction)
        object.__setattr__(K, "matrix", dual)
        tangent = torch.autograd.forward_ad.unpack_dual(K.gram()).tangent
    torch.testing.assert_close(tangent, direction.mT @ A + A.mT @ direction)


# --- layers ---------------------------------------------------------------------------------------

IMAGE, COST = rand(2, 1, 9, 8, seed=6), randn(2, 3, 6, 5, seed=7)


def denoiser(**settings):
    return layers.AnalysisDenoiser(size=3, iterations=20, weight=0.05, **settings).double()


def coder():
    torch.manual_seed(1)
    return layers.SparseCoding(5, 4, iterations=30).double()


def segmenter():
    return layers.GlobalLayer(layers.ContrastWeights(), iterations=10).double()


LAYERS = {
    "AnalysisDenoiser": (denoiser, (IMAGE,)),
    "AnalysisDenoiser, conditioned": (lambda: denoiser(conditioned=True), (IMAGE, 0.1)),
    "SparseCoding": (coder, (randn(3, 4, seed=8),)),
    "Potts": (lambda: layers.Potts(10, learn_balance=True).double(), (COST, 0.4)),
    "GlobalLayer": (segmenter, (COST, COST)),
}


def seen_of_layer(layer, inputs):
    found = layer(*inputs)
    gradients = torch.autograd.grad(found.square().sum(), list(layer.parameters()))
    return (found.detach(), *gradients)


def agree(used, fresh, inputs):
    for now, right in zip(*(seen_of_layer(m, inputs) for m in (used, fresh)), strict=True):
        assert torch.equal(now, right)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, change):
    make, inputs = LAYERS[name]
    used, fresh = make(), make()
    seen_of_layer(used, inputs)
    for layer in (used, fresh):
        change(list(layer.parameters()))
    agree(used, fresh, inputs)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_whose_parameter_is_another_one(name):
    make, inputs = LAYERS[name]
    used, fresh = make(), make()
    seen_of_layer(used, inputs)
    for layer in (used, fresh):
        for path, p in list(layer.named_parameters()):
            owner = layer.get_submodule(path.rpartition(".")[0])
            setattr(owner, path.rpartition(".")[2], nn.Parameter(0.7 * p.detach() + 0.05))
    agree(used, fresh, inputs)


class Stretched(nn.Module):
    def forward(self, t):
        return 1.25 * t


@pytest.mark.parametrize("name", LAYERS)
def test_layers_under_a_parametrisation(name):
    """It makes the tensor anew in every call, often at the address of the one before."""
    make, inputs = LAYERS[name]
    used = make()
    seen_of_layer(used, inputs)
    for path, _ in list(used.named_parameters()):
        owner = used.get_submodule(path.rpartition(".")[0])
        register_parametrization(owner, path.rpartition(".")[2], Stretched())
    for _ in range(10):
        with torch.no_grad():
            for p in used.parameters():
                p.mul_(1.1)
        fresh = make()
        for path, p in fresh.named_parameters():
            owner = used.get_submodule(path.rpartition(".")[0])
            p.data.copy_(getattr(owner, path.rpartition(".")[2]))
        with torch.no_grad():
            assert torch.equal(used(*inputs), fresh(*inputs))


def test_a_copy_does_not_share_a_memory():
    K = lg.Dense(randn(5, 4, seed=9))
    K.norm()
    other = copy.deepcopy(K)
    other.matrix.data.mul_(2)
    torch.testing.assert_close(other.norm(), 2 * K.norm())
    assert not K.__getstate__()["_memory"]
