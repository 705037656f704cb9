"""A sparse matrix is the dense one without its zeros, in value and in every kind of derivative."""

import copy
import warnings

import pytest
import scipy.sparse
import torch

import legato as lg
from draws import crandn, randn
from legato.errors import InputError

PLACES = randn(6, 5, seed=1) > 0.3
FULL = torch.where(PLACES, randn(6, 5, seed=2), 0.0)
CSR = FULL.to_sparse_csr()
X, Y = randn(3, 5, seed=3), randn(3, 6, seed=4)


@pytest.mark.parametrize(
    "matrix", [CSR, FULL.to_sparse_coo(), FULL.to_sparse_csc(), scipy.sparse.csc_array(FULL)]
)
def test_every_layout_is_the_same_matrix(matrix):
    K = lg.Sparse(matrix)
    assert torch.equal(K.to_dense(), FULL)
    torch.testing.assert_close(K(X), X @ FULL.mT)
    torch.testing.assert_close(K.adjoint(Y), Y @ FULL)
    torch.testing.assert_close(K.norm(), torch.linalg.matrix_norm(FULL, 2), rtol=0.0101, atol=0)


def test_entries_that_are_given_twice_add_up():
    places, entries = [[0, 0], [1, 1]], [1.0, 2.0]
    twice = torch.sparse_coo_tensor(places, entries, (2, 2), check_invariants=True)
    torch.testing.assert_close(lg.Sparse(twice)(torch.ones(2)), torch.tensor([3.0, 0.0]))


@pytest.mark.parametrize("draw", [randn, crandn])
def test_derivatives_of_all_orders_and_modes(draw):
    values = draw(CSR.values().shape[0], seed=5).requires_grad_()
    x, y = draw(2, 5, seed=6).requires_grad_(), draw(2, 6, seed=7).requires_grad_()
    for apply, at in ((lambda K, t: K(t), x), (lambda K, t: K.adjoint(t), y)):

        def product(v, t, apply=apply):
            return apply(lg.Sparse(CSR, v), t)

        assert torch.autograd.gradcheck(product, (values, at), check_forward_ad=True)
        if draw is randn:
            assert torch.autograd.gradgradcheck(product, (values, at))


def test_transforms_of_functions():
    K, values = lg.Sparse(CSR), torch.stack([CSR.values(), 2 * CSR.values()])
    torch.testing.assert_close(torch.func.vmap(K)(X), X @ FULL.mT)
    both = torch.func.vmap(lambda v, x: lg.Sparse(CSR, v)(x))(values, X[:2])
    torch.testing.assert_close(both, torch.stack([X[0] @ FULL.mT, 2 * X[1] @ FULL.mT]))
    alone = torch.func.vmap(lambda v: lg.Sparse(CSR, v).adjoint(Y))(values)
    torch.testing.assert_close(alone, torch.stack([Y @ FULL, 2 * Y @ FULL]))
    torch.testing.assert_close(torch.func.jacrev(K)(X[0]), FULL)
    inside = torch.func.grad(lambda v: Y[0] @ lg.Sparse(CSR, v)(X[0]))(CSR.values())
    torch.testing.assert_close(inside, torch.outer(Y[0], X[0])[PLACES])


def test_empty_rows_batches_and_matrices():
    K = lg.Sparse(torch.zeros(2, 3).to_sparse_csr())
    assert torch.equal(K(torch.ones(3)), torch.zeros(2))
    assert K(torch.ones(0, 3)).shape == (0, 2)
    assert K(torch.ones(2, 4, 3)).shape == (2, 4, 2)


@pytest.mark.filterwarnings("ignore:OneStep leaves out")
@pytest.mark.parametrize("gradient", [lg.Unroll(), lg.Implicit(), lg.OneStep()])
def test_least_squares_as_with_the_dense_matrix(gradient):
    found = []
    for sparse in (True, False):
        values = CSR.values().clone().requires_grad_()
        K = lg.Sparse(CSR, values)
        data = lg.LeastSquares(K if sparse else K.to_dense(), Y)
        stop = lg.Stop(2000, tol=1e-13)
        plain = lg.ForwardBackward(0.1)
        solution = lg.solve(data + lg.L1(0.1), plain, gradient=gradient, stop=stop)
        solution.x.square().sum().backward()
        found.append((solution.x.detach(), values.grad))
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-10)


def test_behind_a_norm_in_a_saddle():
    """min ½|x − y|² + |Kx|₁, where K stands in the saddle; by values of a leaf CSR matrix."""
    leaf = CSR.clone().requires_grad_()
    dense = FULL.clone().requires_grad_()
    target = X[0]
    stop = lg.Stop(5000, tol=1e-13)
    for K in (lg.Sparse(leaf), lg.Dense(dense)):
        energy = lg.SquaredDistance(target) + lg.L1(0.2) @ K
        x = lg.solve(energy, gradient=lg.Implicit(), stop=stop).x
        x.square().sum().backward()
    torch.testing.assert_close(leaf.grad.to_dense(), dense.grad * PLACES, rtol=1e-6, atol=1e-9)


def test_a_sparse_tensor_is_an_operator():
    assert repr(lg.LeastSquares(CSR, Y[0]).operator) == f"Sparse(6×5, {int(PLACES.sum())} entries)"


def test_a_pattern_has_no_gradient():
    dense = FULL.clone().requires_grad_()
    with pytest.raises(InputError, match="made from would get none for its zeros"):
        lg.Sparse(dense.to_sparse_csr())
    with pytest.raises(InputError, match=r"stored values.*torch\.sparse_coo tensor would get none"):
        lg.Sparse(FULL.to_sparse_coo().requires_grad_())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lg.Sparse(FULL), "as Dense"),
        (lambda: lg.Sparse([[1.0]]), "not list"),
        (lambda: lg.Sparse(torch.ones(2, 2, 2).to_sparse_csr()), "one matrix"),
        (lambda: lg.Sparse(torch.ones(2, 2).long().to_sparse_csr()), "floating point"),
        (lambda: lg.Sparse(CSR, torch.ones(3)), "one entry for each"),
        (lambda: lg.Sparse(CSR)(torch.ones(4).double()), "last axis of size 5"),
        (lambda: lg.Sparse(CSR)(torch.ones(5)), "never mixes precisions"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_changes_in_place_are_seen_and_copies_have_data_of_their_own():
    matrix = CSR.clone()
    K = lg.Sparse(matrix)
    before = K.norm()
    matrix.values().mul_(2)
    torch.testing.assert_close(K.norm(), 2 * before, rtol=0.02, atol=0)
    other = copy.deepcopy(K)
    other.values.mul_(0)
    assert float(K(X).abs().max()) > 0


def test_no_word_of_torch_about_its_beta():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lg.Sparse(FULL.float().to_sparse_coo())(X.float())
