"""Clean layers of linear algebra."""

import torch
import torch.nn.functional as F

from makers import randn
from testing.seeded.case import Clean, apply, positive_definite
from testing.seeded.case import well_conditioned as well


def _case(kind, function, inputs, batch=(0,), name=None, **known):
    return Clean(name or kind, kind, lambda: function, inputs, batch, **known)


def _symmetric(x):
    """Symmetric matrices with eigenvalues near 1, 3, 5, …, whatever small x is."""
    return 0.1 * (x + x.mT) + torch.diag(1 + 2 * torch.arange(x.shape[-1]).to(x))


def _ridge(A, b):
    return torch.linalg.solve(A.mT @ A + 0.1 * torch.eye(A.shape[-1]).to(A), apply(A.mT, b))


def _attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def _log_det(x):
    return torch.linalg.slogdet(x).logabsdet


def _singular_shrinkage(x):
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    return u @ torch.diag_embed(F.relu(s - 0.5)) @ v


def _square(s):
    return lambda: (randn(3, 4, 4, seed=s),)


ALGEBRA = [
    _case(
        "linear solve",
        torch.linalg.solve,
        lambda: (well(3, 4, 4, seed=1), randn(3, 4, seed=2)),
        (0, 1),
    ),
    _case(
        "linear solve",
        lambda A, b: torch.linalg.solve(A, b.mT).mT,
        lambda: (well(4, 4, seed=3), randn(3, 4, seed=4)),
        (1,),
        name="one matrix, many sides",
    ),
    _case(
        "cholesky solve",
        lambda Q, c: torch.cholesky_solve(
            c.unsqueeze(-1), torch.linalg.cholesky((Q + Q.mT) / 2)
        ).squeeze(-1),
        lambda: (positive_definite(3, 4, 4, seed=5), randn(3, 4, seed=6)),
        (0, 1),
    ),
    _case(
        "cholesky factor",
        lambda Q: torch.linalg.cholesky((Q + Q.mT) / 2),
        lambda: (positive_definite(3, 4, 4, seed=7),),
    ),
    _case(
        "triangular solve",
        lambda L, b: torch.linalg.solve_triangular(L.tril(), b.unsqueeze(-1), upper=False),
        lambda: (well(3, 4, 4, seed=8), randn(3, 4, seed=9)),
        (0, 1),
    ),
    _case(
        "least squares",
        lambda A, b: torch.linalg.lstsq(A, b.unsqueeze(-1)).solution.squeeze(-1),
        lambda: (randn(3, 7, 3, seed=10), randn(3, 7, seed=11)),
        (0, 1),
    ),
    _case(
        "ridge regression", _ridge, lambda: (randn(3, 6, 4, seed=12), randn(3, 6, seed=13)), (0, 1)
    ),
    _case(
        "ridge regression",
        _ridge,
        lambda: (randn(6, 4, seed=14), randn(6, seed=15)),
        (),
        name="ridge regression, one",
    ),
    _case("inverse", torch.linalg.inv, lambda: (well(3, 4, 4, seed=16),)),
    _case("pseudo-inverse", torch.linalg.pinv, lambda: (randn(3, 5, 3, seed=17),)),
    _case("determinant", torch.linalg.det, lambda: (well(3, 4, 4, seed=18),)),
    _case("log-determinant", _log_det, lambda: (well(3, 4, 4, seed=19),)),
    _case("matrix exponential", torch.linalg.matrix_exp, _square(20)),
    _case("matrix power", lambda x: torch.linalg.matrix_power(x, 3), _square(21)),
    _case("eigenvalues", lambda x: torch.linalg.eigvalsh(_symmetric(x)), _square(22)),
    _case(
        "largest eigenvalue", lambda x: torch.linalg.eigvalsh(_symmetric(x))[..., -1], _square(23)
    ),
    _case(
        "spectral projector",
        lambda x: (lambda v: v @ v.mT)(torch.linalg.eigh(_symmetric(x)).eigenvectors[..., :2]),
        _square(24),
    ),
    _case("singular values", torch.linalg.svdvals, lambda: (randn(3, 5, 3, seed=25),)),
    _case(
        "nuclear norm",
        lambda x: torch.linalg.svdvals(x).sum(-1),
        lambda: (randn(3, 5, 3, seed=26),),
    ),
    _case(
        "spectral norm",
        lambda x: torch.linalg.matrix_norm(x, 2),
        lambda: (randn(3, 5, 3, seed=27),),
    ),
    _case("singular value shrinkage", _singular_shrinkage, lambda: (randn(3, 5, 3, seed=28),)),
    _case(
        "triangular factor",
        lambda x: (lambda r: r * torch.diagonal(r, dim1=-2, dim2=-1).sign().unsqueeze(-1))(
            torch.linalg.qr(x).R
        ),
        lambda: (randn(3, 5, 3, seed=29),),
    ),
    _case(
        "bilinear form",
        lambda x, A, y: torch.einsum("bi,ij,bj->b", x, A, y),
        lambda: (randn(3, 4, seed=30), randn(4, 5, seed=31), randn(3, 5, seed=32)),
        (0, 2),
    ),
    _case(
        "matrix product",
        lambda x, y: x @ y,
        lambda: (randn(3, 4, 5, seed=33), randn(3, 5, 2, seed=34)),
        (0, 1),
    ),
    _case("linear", F.linear, lambda: (randn(3, 5, seed=35), randn(4, 5, seed=36))),
    _case(
        "linear",
        F.linear,
        lambda: (randn(3, 5, seed=37), randn(4, 5, seed=38), randn(4, seed=39)),
        name="linear with bias",
    ),
    _case(
        "quadratic form",
        lambda Q, x: (x * apply(Q, x)).sum(-1) / 2,
        lambda: (randn(3, 4, 4, seed=40), randn(3, 4, seed=41)),
        (0, 1),
    ),
    _case(
        "kronecker product",
        lambda x, y: torch.kron(x, y),
        lambda: (randn(2, 3, seed=42), randn(2, 2, seed=43)),
        (),
    ),
    _case("trace", lambda x: x.diagonal(dim1=-2, dim2=-1).sum(-1), _square(44)),
    _case("gram matrix", lambda x: x @ x.mT, lambda: (randn(3, 4, 2, seed=45),)),
    _case(
        "cross product",
        lambda x, y: torch.linalg.cross(x, y),
        lambda: (randn(3, 3, seed=46), randn(3, 3, seed=47)),
        (0, 1),
    ),
    _case(
        "attention",
        _attention,
        lambda: tuple(randn(2, 4, 3, seed=s) for s in (48, 49, 50)),
        (0, 1, 2),
    ),
    _case(
        "badly scaled system",
        lambda Q, c: torch.linalg.solve(Q, c),
        lambda: (well(3, 4, 4, seed=51) * 1e5, randn(3, 4, seed=52) * 1e-4),
        (0, 1),
    ),
    _case(
        "matrix of small numbers",
        lambda x: torch.linalg.svdvals(x),
        lambda: (1e-4 * randn(3, 5, 3, seed=53),),
    ),
]
