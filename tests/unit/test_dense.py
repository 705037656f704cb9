"""What a matrix remembers, and for how long; heirs of Dense."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import legato as lg
from legato.errors import InputError
from legato.nn import NonNegativeLeastSquares
from makers import randn


def test_memories_follow_the_matrix():
    K = lg.Dense(torch.eye(3))
    assert float(K.norm()) == pytest.approx(1)
    torch.testing.assert_close(K.gram(), torch.eye(3))
    for factor in (2.0, 3.0, 5.0):  # new storage each time, perhaps at an old address
        K.matrix.data = factor * torch.eye(3)
        assert float(K.norm()) == pytest.approx(factor)
        torch.testing.assert_close(K.gram(), factor**2 * torch.eye(3))
    K.matrix.mul_(2)
    assert float(K.norm()) == pytest.approx(10)
    K.matrix.data = K.matrix.data.double()
    assert K.norm().dtype == torch.float64


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda K: pickle.loads(pickle.dumps(K))])
def test_copies_remember_nothing(copied):
    K = lg.Dense(torch.eye(2))
    K.matrix.mul_(1)
    K.norm()
    other = copied(K)
    other.matrix.mul_(10)
    assert float(other.norm()) == pytest.approx(10)
    assert float(K.norm()) == pytest.approx(1)


def test_what_is_done_to_a_memory_in_place_stays_with_the_caller():
    f = lg.LeastSquares(2 * torch.eye(2), torch.ones(2))
    for _ in range(2):
        for found in (
            f.operator.norm(),
            f.operator.gram(),
            lg.Quadratic(f.operator, f.b).lipschitz(),
        ):
            found.mul_(100)
    torch.testing.assert_close(f.operator.norm(), torch.tensor(2.0), rtol=1e-5, atol=0)
    torch.testing.assert_close(f.hessian(torch.zeros(2)), 4 * torch.eye(2))


def test_inference_leaves_nothing_behind_that_autograd_refuses():
    K = lg.Dense(torch.eye(2))
    with torch.inference_mode():
        K.norm(), K.gram()
    weight = torch.tensor(2.0, requires_grad=True)
    lg.LeastSquares(K, torch.ones(2), weight).hessian(torch.zeros(2)).sum().backward()
    assert float(weight.grad) == 2


class Twice(lg.Dense):
    """An heir that multiplies by something else."""

    def __call__(self, x):
        return 2 * super().__call__(x)

    def adjoint(self, y):
        return 2 * super().adjoint(y)

    def norm(self, like=None):
        return 2 * super().norm(like)


@pytest.mark.parametrize("geometry", [lg.Euclidean(), lg.Entropy()])
@pytest.mark.parametrize("wanted", [False, True])
def test_heirs_of_dense_are_taken_at_their_word(geometry, wanted):
    matrix = torch.eye(2).requires_grad_(wanted)
    layer = NonNegativeLeastSquares(500, geometry=geometry)
    x = layer(Twice(matrix), torch.tensor([2.0, 4.0]))
    torch.testing.assert_close(x, torch.tensor([1.0, 2.0]), rtol=1e-3, atol=1e-3)
    H = lg.LeastSquares(Twice(torch.eye(2)), torch.ones(2)).hessian(torch.zeros(2))
    torch.testing.assert_close(H, 4 * torch.eye(2))


def test_a_number_where_a_batch_wants_a_vector():
    with pytest.raises(InputError, match="last axis of size 2"):
        lg.Dense(torch.ones(3, 2, 2))(torch.tensor(1.0))


def test_the_norm_of_what_is_no_number_is_none():
    A = randn(2, 3, 3, seed=1)
    A[1, 0, 2] = float("nan")
    norm = lg.Dense(A).norm()
    assert bool(norm[1].isnan())
    torch.testing.assert_close(norm[0], torch.linalg.matrix_norm(A[0], 2))


@pytest.mark.parametrize("in_front", [(), (4,), (2, 4)])
def test_axes_in_front_of_a_batch_of_matrices(in_front):
    A = randn(4, 3, 2).requires_grad_()  # as many as there are copies: no axis is told by its size
    x = randn(*in_front, 4, 2, seed=1).requires_grad_()
    y = lg.Dense(A)(x)
    true = torch.einsum("bmk,...bk->...bm", A, x)
    torch.testing.assert_close(y, true)
    r = randn(*y.shape, seed=2)
    torch.testing.assert_close(lg.Dense(A).adjoint(r), torch.einsum("bmk,...bm->...bk", A, r))
    for got, wanted in zip(
        torch.autograd.grad(y, (A, x), r), torch.autograd.grad(true, (A, x), r), strict=True
    ):
        torch.testing.assert_close(got, wanted)
