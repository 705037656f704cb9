"""Matrix-free solvers for (I − M)w = ξ; every one reports its residual."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.errors import GradientError, InputError

Product = Callable[[Tensor], Tensor]


@dataclass
class LinearResult:
    """A solution of (I − M)w = ξ with its certificate: ``residual`` is ‖ξ − (I − M)w‖/‖ξ‖.

    ``converged``: the residual is what was asked for. Reference: :class:`LinearSolver`.

    >>> M = torch.diag(torch.tensor([0.5, 0.25]))
    >>> result = lg.GMRES().solve(lambda w: M @ w, torch.ones(2))
    >>> result.converged, result.residual < 1e-6, result.iterations
    (True, True, 2)
    """

    solution: Tensor
    residual: float
    iterations: int
    converged: bool
    spectral_radius: float | None = None


class LinearSolver(ABC):
    """Solves (I − M)w = ξ, given w ↦ Mw.

    Reference: Saad (2003), *Iterative Methods for Sparse Linear Systems*.

    >>> M = torch.diag(torch.tensor([0.5, 0.25]))
    >>> lg.GMRES().solve(lambda w: M @ w, torch.ones(2)).solution
    tensor([2.0000, 1.3333])
    """

    @abstractmethod
    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        """Find w; never raise for a missed tolerance, report it."""


def attainable(tol: float, xi: Tensor) -> float:
    """A tolerance that this precision can reach."""
    return max(tol, 50 * torch.finfo(xi.dtype).eps)


def relative_residual(product: Product, w: Tensor, xi: Tensor) -> float:
    return float(torch.linalg.vector_norm(xi - w + product(w)) / torch.linalg.vector_norm(xi))


def spectral_radius(product: Product, start: Tensor, iterations: int = 100) -> float:
    r"""The modulus of the dominant eigenvalue of M that ``start`` excites, by power iteration.

    .. math:: ρ = \lim_{n → ∞} \big(‖M^{2n} v‖ / ‖M^n v‖\big)^{1/n}

    The growth is averaged over the second half of the iterations, which also settles complex pairs.
    What has decayed below √eps of the start is rounding and is not looked at: eigenvalues that
    ``start`` does not excite (say, of dual variables that touch nothing) stay out of sight.
    Reference: Golub and Van Loan, *Matrix Computations*, Section 7.3.

    >>> M = torch.tensor([[0.5, 1.0], [0.0, 0.25]])
    >>> round(legato.gradients.spectral_radius(lambda w: M @ w, torch.ones(2)), 3)
    0.5
    """
    v, sizes = start, [float(torch.linalg.vector_norm(start))]
    floor = torch.finfo(start.dtype).eps ** 0.5 * sizes[0]
    for _ in range(iterations):
        v = product(v)
        sizes.append(float(torch.linalg.vector_norm(v)))
        if not floor < sizes[-1] < math.inf:
            break
    return _decay(sizes)


def random_vector(like: Tensor) -> Tensor:
    """A reproducible start for power iterations and probes: independent v_i ∼ N(0, 1).

    Reference: Kuczyński and Woźniakowski (1992), random starts.

    >>> legato.gradients.random_vector(torch.zeros(3)).shape
    torch.Size([3])
    """
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def require_sound(tol: float, maximum: int) -> None:
    """Refuse settings with which nothing can be solved."""
    if not tol > 0 or maximum < 1:
        raise InputError(
            f"A linear solver needs tol > 0 and at least 1 iteration, not {tol}, {maximum}."
        )


def _require_numbers(products: Tensor) -> None:
    """Refuse a map whose products are NaN or infinite, of which no solver can make anything."""
    if not bool(torch.isfinite(products).all()):
        raise GradientError(
            "The derivative of the step at the solution holds NaN or infinite values: a step or "
            "the data are too large or too small for their precision, or a callable is not "
            "differentiable there. Scale the data to the size of 1, or use float64."
        )


def nothing(xi: Tensor) -> LinearResult:
    """The answer to ξ = 0."""
    return LinearResult(torch.zeros_like(xi), 0.0, 0, True)


@dataclass(frozen=True)
class GMRES(LinearSolver):
    r"""Generalised minimal residuals with restarts, for any I − M.

    .. math:: w_k = \arg\min_{w ∈ 𝒦_k} ‖ξ − (I − M)w‖

    Reference: Saad and Schultz (1986).

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(lg.GMRES()))
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3), solution.backward.iterations
    (tensor(-3.0410), 2)
    """

    tol: float = 1e-6
    restart: int = 50
    iterations: int = 500

    def __post_init__(self) -> None:
        require_sound(self.tol, min(self.restart, self.iterations))

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        size = float(torch.linalg.vector_norm(xi))
        if size == 0:
            return nothing(xi)
        tol = attainable(self.tol, xi)
        w, r = torch.zeros_like(xi), xi
        used, radius, residual = 0, None, 1.0
        while used < self.iterations and residual > tol:
            cycle = min(self.restart, self.iterations - used, xi.numel())
            update, count, ritz = _arnoldi_cycle(product, r, cycle, tol * size)
            w = w + update
            used += count
            radius = ritz if radius is None else max(radius, ritz)
            r = xi - w + product(w)
            previous, residual = residual, float(torch.linalg.vector_norm(r)) / size
            if not residual < 0.999 * previous:  # a whole cycle without progress
                break
        return LinearResult(w, residual, used, residual <= 2 * tol, radius)


def _arnoldi_cycle(
    product: Product, r: Tensor, size: int, target: float
) -> tuple[Tensor, int, float]:
    """One GMRES cycle: the update, the number of products, and max|1 − Ritz value|."""
    beta = torch.linalg.vector_norm(r)
    basis = r.new_empty(size + 1, r.numel())
    basis[0] = r / beta
    H = torch.zeros(size + 1, size, dtype=torch.float64)
    fit = _HessenbergFit(float(beta))
    count = 0
    for k in range(size):
        v = basis[k] - product(basis[k])
        known = basis[: k + 1]
        first = known @ v  # twice is enough (Kahan): orthogonal to working precision
        v = v - first @ known
        second = known @ v
        v = v - second @ known
        length = torch.linalg.vector_norm(v)
        column = torch.cat([first + second, length[None]]).double().cpu()  # the one wait of a step
        _require_numbers(column)
        H[: k + 2, k] = column
        count = k + 1
        error = fit.add(column.tolist())
        if error <= 0.5 * target or float(column[-1]) <= 1e-14 * float(column.norm()):
            break
        basis[k + 1] = v / length
    rhs = torch.zeros(count + 1, 1, dtype=torch.float64)
    rhs[0] = beta.double().cpu()
    # By singular values, once: also defined where I − M is singular.
    y = torch.linalg.lstsq(H[: count + 1, :count], rhs, driver="gelsd").solution
    update = y[:, 0].to(r) @ basis[:count]
    ritz = torch.linalg.eigvals(H[:count, :count])
    return update, count, float((1 - ritz).abs().max())


class _HessenbergFit:
    r"""The residual of min_y ‖βe₁ − Hy‖ for a Hessenberg H that grows by columns.

    Each column meets the rotations of its predecessors and adds one that removes its last entry;
    what they make of βe₁ ends in the residual. Reference: Saad and Schultz (1986), Section 3.2.
    """

    def __init__(self, beta: float) -> None:
        self.rotations: list[tuple[float, float]] = []
        self.last = beta

    def add(self, column: list[float]) -> float:
        """The norm of the residual with one more column (h₁, …, h_{k+1})."""
        upper = column[0]
        for (c, s), lower in zip(self.rotations, column[1:-1], strict=True):
            upper = c * lower - s * upper
        length = math.hypot(upper, column[-1])
        c, s = (upper / length, column[-1] / length) if length > 0 else (1.0, 0.0)
        self.rotations.append((c, s))
        self.last *= -s
        return abs(self.last)


@dataclass(frozen=True)
class BiCGStab(LinearSolver):
    """Stabilised bi-conjugate gradients: (I − M)w = ξ by short recurrences, for any I − M.

    Reference: van der Vorst (1992).

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(lg.BiCGStab()))
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3)
    tensor(-3.0410)
    """

    tol: float = 1e-6
    iterations: int = 500

    def __post_init__(self) -> None:
        require_sound(self.tol, self.iterations)

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        size = float(torch.linalg.vector_norm(xi))
        if size == 0:
            return nothing(xi)
        tol = attainable(self.tol, xi)

        def apply(v: Tensor) -> Tensor:
            return v - product(v)

        w, r = torch.zeros_like(xi), xi.clone()
        shadow, p = r.clone(), r.clone()
        rho = torch.dot(shadow, r)
        count = 0
        while count < self.iterations:
            count += 1
            v = apply(p)
            alpha = rho / torch.dot(shadow, v)
            s = r - alpha * v
            t = apply(s)
            square = torch.dot(t, t)
            omega = torch.dot(t, s) / square if float(square) > 0 else torch.zeros_like(alpha)
            step = alpha * p + omega * s
            if not bool(torch.isfinite(step).all()):
                break
            w = w + step
            r = s - omega * t
            if float(torch.linalg.vector_norm(r)) <= tol * size:
                break
            new = torch.dot(shadow, r)
            if float(new) == 0 or float(omega) == 0:
                break
            p = r + (new / rho) * (alpha / omega) * (p - omega * v)
            rho = new
        residual = relative_residual(product, w, xi)
        radius = spectral_radius(product, xi, 20)
        return LinearResult(w, residual, count, residual <= 2 * tol, radius)


@dataclass(frozen=True)
class Neumann(LinearSolver):
    r"""The geometric series, w = Σ_k M^k ξ, which converges where ρ(M) < 1.

    The residual after k terms is exactly M^k ξ, so the certificate is free.
    Reference: Section 4.3 of Ochs et al. (2016), with errata 8.

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(lg.Neumann()))
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3)
    tensor(-3.0410)
    """

    tol: float | None = 1e-6
    iterations: int = 1000

    def __post_init__(self) -> None:
        require_sound(1.0 if self.tol is None else self.tol, self.iterations)

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        size = float(torch.linalg.vector_norm(xi))
        if size == 0:
            return nothing(xi)
        tol = 0.0 if self.tol is None else attainable(self.tol, xi)
        w, term = xi.clone(), xi
        sizes = [size]
        while True:
            term = product(term)
            sizes.append(float(torch.linalg.vector_norm(term)))
            residual = sizes[-1] / size
            terms = len(sizes) - 1
            if not residual > tol or terms >= self.iterations or not math.isfinite(residual):
                break
            w = w + term
        return LinearResult(w, residual, terms, residual <= tol, _decay(sizes))


def _decay(sizes: list[float]) -> float:
    """The rate at which the last half of a sequence of norms decays."""
    usable = [s for s in sizes if s > 0 and math.isfinite(s)]
    if len(usable) < len(sizes) and sizes[-1] != 0:
        return math.inf
    if len(usable) < 2:
        return 0.0
    start = len(usable) // 2 if len(usable) > 3 else len(usable) - 2
    return float((usable[-1] / usable[start]) ** (1 / (len(usable) - 1 - start)))


@dataclass(frozen=True)
class Direct(LinearSolver):
    """The matrix I − M written out and factorised, w = (I − M)⁻¹ξ: small problems, and checks.

    Reference: Golub and Van Loan, *Matrix Computations*.

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(lg.Direct()))
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3)
    tensor(-3.0410)
    """

    largest: int = 2048

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        n = xi.numel()
        if n > self.largest:
            raise GradientError(
                f"Direct would write out a {n} × {n} matrix. Use GMRES(), or raise "
                f"Direct(largest={n}) if that is meant."
            )
        if float(torch.linalg.vector_norm(xi)) == 0:
            return nothing(xi)
        identity = torch.eye(n, dtype=xi.dtype, device=xi.device)
        M = torch.stack([product(e) for e in identity], dim=1)
        _require_numbers(M)
        # Least squares of minimal norm: also defined, and certified by its residual, if singular.
        w = torch.linalg.lstsq(
            (identity - M).cpu(), xi.cpu().unsqueeze(-1), driver="gelsd"
        ).solution
        w = w.squeeze(-1).to(xi)
        residual = relative_residual(product, w, xi)
        tol = math.sqrt(torch.finfo(xi.dtype).eps)
        return LinearResult(w, residual, n, residual <= tol, spectral_radius(product, xi))
