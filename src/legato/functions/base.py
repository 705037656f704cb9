"""The contract of a function."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from legato._support.checks import require_tensor
from legato._support.holding import Holder
from legato._support.products import times_tensor
from legato._support.tree import Var, joint_shape, leaves, sub_scaled, sum_beyond
from legato.errors import InputError, MissingConjugateError
from legato.functions.curvature import hessian_by_autograd
from legato.geometry import Euclidean, Geometry
from legato.operators import Operator

if TYPE_CHECKING:
    from legato.functions.restricted import Columns


class ProxParts(NamedTuple):
    """What a prox sees of a function: scale·core(x) + Σ factor·⟨c, x⟩ + epsilon·ψ(x)."""

    core: Function
    scale: Any = None
    shifts: tuple[tuple[Any, Any], ...] = ()
    epsilon: Any = None


class Function(Holder):
    r"""A convex function f; its kind says what it can do.

    .. math:: f(tx + (1 − t)z) ≤ t f(x) + (1 − t) f(z)

    Every function has a value, ``f(x)``. Smooth ones have ``grad`` and a ``lipschitz`` constant,
    prox-friendly ones an entry in the table of closed forms (:func:`~legato.register_prox`).
    Functions add, scale by a number in front, compose with an operator and shift; nothing is
    computed until the result is used.

    A class of your own defines ``summands`` (or ``value``), then ``grad`` or a prox. What else it
    knows it says by overriding; every default means "unknown", never "no".
    Reference: Bauschke and Combettes, *Convex Analysis and Monotone Operator Theory* (2017).

    >>> f = 0.5 * lg.LeastSquares(torch.eye(2), torch.ones(2)) + lg.SquaredNorm()
    >>> f(torch.zeros(2)), f.grad(torch.zeros(2))
    (tensor(0.5000), tensor([-0.5000, -0.5000]))
    >>> lg.L1(0.5).prox(torch.tensor([2.0, -0.3]))
    tensor([1.5000, 0.0000])
    >>> lg.L1(0.1) @ lg.Differences() + lg.NonNegative()
    L1(0.1) @ Differences() + NonNegative()
    """

    takes_complex: ClassVar[bool] = False
    """Whether all formulas hold for complex x as they stand; else it is refused in a sentence."""
    of_moduli: ClassVar[bool] = False
    """Whether f depends on |x_i| only: its prox then moves moduli, and leaves phases alone."""

    # --- value ------------------------------------------------------------------------------------

    def summands(self, x: Var) -> Tensor:
        """Terms that add up to f(x); their leading axes are those of x. +∞ outside the domain."""
        raise InputError(
            f"{type(self).__name__} does not define summands(x), so its value for each element of "
            "a batch is not known."
        )

    def value(self, x: Var) -> Tensor:
        """f(x), summed over all entries and batches."""
        return self.summands(x).sum()

    def values(self, x: Var, batch: int) -> Tensor:
        """f(x) for each element of a batch: the first ``batch`` axes of x stay."""
        return sum_beyond(self.summands(x), batch) if batch else self.value(x)

    def __call__(self, x: Var) -> Tensor:
        if isinstance(x, Tensor) and x.is_complex() and not (self.takes_complex or self.of_moduli):
            from legato.functions.complexity import require_real  # which imports this module

            require_real(self, x)
        try:
            return self.value(x)
        except (RuntimeError, IndexError, AttributeError, TypeError):
            from legato.functions.fitting import explain  # which imports this module

            explain(self, x)
            raise

    @property
    def coupled(self) -> int | None:
        """How many trailing axes of x belong together; axes before are a batch. None: all of x."""
        return None

    def start(self) -> Var | None:
        """Zeros of the shape this function acts on, or None where its data do not tell."""
        return None

    def weight_shape(self) -> torch.Size:
        """What x broadcasts with at least: weights for a batch make one of x.

        Known where every number belongs to an entry of x.
        """
        if self.coupled != 0:
            return torch.Size()
        own = [t.shape for t in vars(self).values() if isinstance(t, Tensor)]
        return joint_shape(*own)

    def bounds(self) -> tuple[Any, Any]:
        """Numbers or tensors lo, hi with lo ≤ x ≤ hi on the domain of f."""
        return (-torch.inf, torch.inf)

    # --- smooth functions -------------------------------------------------------------------------

    def grad(self, x: Var) -> Var:
        """∇f(x)."""
        raise InputError(
            f"{type(self).__name__} is not smooth: it has a prox, not a gradient. Pass it as the "
            "nonsmooth term, or replace it by legato.smoothed(problem, mu)."
        )

    def descend(self, y: Var, step: Any, x: Var) -> Var:
        """y − step·∇f(x), in fewer operations where there is a way."""
        return sub_scaled(y, step, self.grad(x))

    @property
    def is_smooth(self) -> bool:
        return type(self).grad is not Function.grad

    def lipschitz(self) -> Tensor | float | None:
        """A Lipschitz constant of ∇f, None where it is unknown.

        A tensor broadcasts against x: one number for each element of a batch, or, for a separable
        part, one for each entry.
        """
        return None

    def hessian(self, x: Tensor) -> Tensor:
        """∇²f(x), (…, n, n) for x of shape (…, n) whose leading axes are a batch.

        Its leading axes broadcast against those of x: what a batch shares is given once. Without a
        closed form the gradient is differentiated, which takes n products.
        """
        if not self.is_smooth:
            raise InputError(
                f"{type(self).__name__} is not smooth: it has no Hessian. Use ForwardBackward, "
                "which needs its prox only, or legato.smoothed(problem, mu)."
            )
        return hessian_by_autograd(self.grad, x, type(self).__name__)

    def hessian_on(self, x: Var, columns: Columns) -> Tensor:
        """BᵀHB, (elements, k, k), for some columns B of an orthogonal matrix; detached."""
        from legato.functions.restricted import hessian_on

        return hessian_on(self.grad, x, columns)

    # --- prox-friendly functions ------------------------------------------------------------------

    def prox(self, x: Var, step: Any = 1.0, geometry: Geometry | None = None) -> Var:
        r"""The proximal point of x, in the Euclidean geometry unless another is given.

        .. math:: \arg\min_z\; \mathrm{step}·f(z) + D_ψ(z, x)
        """
        from legato.functions.prox import prox  # which imports this module

        for tensor in leaves(x):
            require_tensor(tensor, "x")
        geometry = Euclidean() if geometry is None else geometry
        return prox(self, geometry, geometry.mirror(x), step)

    def prox_parts(self, geometry: Geometry) -> ProxParts:
        """f taken apart for its prox in a geometry; what has an entry of its own is its core."""
        return ProxParts(self)

    def prox_couples(self) -> tuple[int, ...]:
        """Axes along which the prox mixes entries: a step must not vary along them."""
        return ()

    def range_projector(self, y: Var) -> Callable[[Var], Var] | None:
        """v ↦ Πv onto the range of the derivative of the Euclidean prox at y, if it is known.

        Needed only where that derivative is no multiple of a projection: see ``CG``.
        """
        return None

    def kinks(self, y: Tensor, step: Any) -> Tensor | None:
        """How far y is from the nearest point where the Euclidean prox has a kink; None: unknown.

        Infinite where there is none.
        """
        return None

    def smoothed(self, mu: Tensor | float) -> Function:
        """A function with more derivatives that tends to this one as μ → 0."""
        if self.is_smooth:
            return self
        raise InputError(
            f"No smoothing of {type(self).__name__} is known. NonNegative, Box, L1, GroupL1, "
            "AsymmetricL1 and Simplex have one; a class of your own says its by a method "
            "smoothed(self, mu)."
        )

    # --- the conjugate ----------------------------------------------------------------------------

    def conjugate(self) -> Function:
        r"""The convex conjugate as a function; its conjugate is this function again.

        .. math:: f^*(y) = \sup_x\; ⟨x, y⟩ − f(x)
        """
        other: Function | None = self.__dict__.get("_conjugate")
        if other is not None:
            object.__setattr__(other, "_partner", weakref.ref(self))
            return other
        known = self.__dict__.get("_partner")
        other = None if known is None else known()
        if other is None:
            # Two that hold each other would keep the graphs of their weights until the garbage
            # collector comes by: only the one that was made holds the other.
            other = self.make_conjugate()
            object.__setattr__(other, "_conjugate", self)
            object.__setattr__(self, "_partner", weakref.ref(other))
        return other

    def __setattr__(self, name: str, value: Any) -> None:
        """A term whose attributes may be set has another conjugate afterwards."""
        object.__setattr__(self, name, value)
        self.__dict__.pop("_partner", None)

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: all but the weak reference."""
        return {name: value for name, value in self.__dict__.items() if name != "_partner"}

    def make_conjugate(self) -> Function:
        """The conjugate under its own name, where it has one."""
        from legato.functions.algebra import Conjugate

        return Conjugate(self)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        """f*(y), for a conjugate without a name of its own."""
        raise MissingConjugateError(
            f"The conjugate of {self!r} is not known in closed form, so the primal–dual gap cannot "
            "be computed. Use the residual instead."
        )

    # --- algebra ----------------------------------------------------------------------------------

    def __add__(self, other: Function) -> Function:
        from legato.functions.algebra import add

        return add(self, other)

    def __radd__(self, other: int) -> Function:
        """0 + f is f, so that sum(terms) works."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: object) -> Function:
        raise InputError(
            "Terms are added, not subtracted: the difference of convex terms need not be convex. "
            "A linear term of either sign is Linear(c)."
        )

    def __rmul__(self, factor: Tensor | float) -> Function:
        from legato.functions.algebra import scale

        return scale(factor, self)

    def __matmul__(self, operator: Operator | Tensor) -> Function:
        from legato.functions.algebra import compose

        return compose(self, operator)

    def __rmatmul__(self, operator: object) -> Function:
        raise InputError("A term stands before its operator: x ↦ f(Ax) is f @ A, not A @ f.")

    def shifted(self, c: Tensor) -> Function:
        """x ↦ f(x − c)."""
        from legato.functions.algebra import shift

        return shift(self, c)

    __torch_function__: ClassVar[Any] = classmethod(times_tensor)
    __array_ufunc__ = None  # a NumPy number in front leaves the product to __rmul__


def indicator(violation: Tensor) -> Tensor:
    """Entrywise 0 where a violation is rounding (at most √eps), +∞ where it is real."""
    tolerance = torch.finfo(violation.dtype).eps ** 0.5
    return torch.where(violation > tolerance, torch.inf, 0 * violation.detach())
