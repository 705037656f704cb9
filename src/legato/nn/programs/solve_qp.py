"""A quadratic program by the arguments of qpsolvers."""

from __future__ import annotations

from torch import Tensor

from legato.nn.programs.quadratic import QuadraticProgram


def solve_qp(
    P: Tensor,
    q: Tensor,
    G: Tensor | None = None,
    h: Tensor | None = None,
    A: Tensor | None = None,
    b: Tensor | None = None,
    lb: Tensor | float | None = None,
    ub: Tensor | float | None = None,
) -> Tensor:
    r"""The solution of a quadratic program, with names and order of the package qpsolvers.

    .. math:: x = \arg\min_x\; \tfrac12 x^⊤Px + q^⊤x \quad
              \text{s.t.}\quad Gx ≤ h,\; Ax = b,\; lb ≤ x ≤ ub

    :class:`QuadraticProgram` is what solves it, with batches and the gradient in all data. Where
    qpsolvers returns None, x is NaN, with a warning.

    Args:
        P (Tensor): (…, n, n), symmetric and positive semi-definite.
        q (Tensor): (…, n).
        G (Tensor, optional): (…, m, n), with h. Default: None
        h (Tensor, optional): (…, m). Default: None
        A (Tensor, optional): (…, p, n), with b. Default: None
        b (Tensor, optional): (…, p). Default: None
        lb (Tensor or float, optional): (…, n). Default: None
        ub (Tensor or float, optional): (…, n). Default: None

    Returns:
        Tensor: x (…, n).

    Reference: Caron et al., qpsolvers.

    >>> solve_qp(torch.eye(2), torch.tensor([-1.0, 1.0]), lb=0.0)
    tensor([1., 0.])
    """
    return QuadraticProgram()(P, q, A, b, G, h, lb, ub)
