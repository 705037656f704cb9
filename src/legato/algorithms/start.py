"""Where an iteration may begin, and how to tell that it has gone wrong."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import holds, is_concrete, require_tensor, require_tensor_or_number
from legato._support.later import later
from legato._support.tree import Var, tree_map
from legato.errors import DivergenceError, DomainError, InputError, StepError
from legato.functions import Function, Separable, mirror_prox
from legato.functions.prox import blocks_of
from legato.geometry import Geometry, Product


def mirror_start(geometry: Geometry, term: Function, shape: Var | None, x0: Var | None) -> Var:
    """Mirror coordinates of x0, or of a neutral point of the given shape."""
    if x0 is None:
        if shape is None:
            raise InputError(
                "The problem's data do not tell the shape of its variable. Pass x0=…, "
                "e.g. torch.zeros(shape) or any interior point."
            )
        require_numbers_of(geometry, shape)
        return neutral(geometry, term, shape)
    for tensor in tree.leaves(x0):
        require_tensor(tensor, "x0")
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise InputError(f"x0 must be floating-point tensors, not {tensor.dtype}.")
        if tree.real_dtype(tensor.dtype) not in (torch.float32, torch.float64):
            raise InputError(
                f"x0 is {tensor.dtype}, but solvers compute in float32 or float64. Call .float()."
            )
        if tensor.numel() == 0:
            raise InputError(f"x0 is empty (shape {tuple(tensor.shape)}): nothing to solve for.")
    x0 = fitted(x0, shape, "x0")
    require_numbers_of(geometry, x0)
    if is_concrete():
        later(partial(_require_inside, geometry, x0))
    return geometry.mirror(x0)


def require_numbers_of(geometry: Geometry, x: Var) -> None:
    """Refuse complex variables where a geometry is made of real functions."""
    parts = x if isinstance(geometry, Product) and isinstance(x, tuple) else (x,)
    for block, part in zip(blocks_of(geometry, len(parts)), parts, strict=False):
        if any(t.is_complex() for t in tree.leaves(part)) and not block.takes_complex:
            raise InputError(
                f"The variable is complex, but {block!r} is a geometry of real numbers. Use "
                "Euclidean, or give real and imaginary parts as an axis, with torch.view_as_real."
            )


def require_real_variable(state: Var) -> None:
    """Refuse complex variables for Newton's method."""
    if any(isinstance(t, Tensor) and t.is_complex() for t in tree.leaves(state)):
        raise InputError(
            "Newton solves with real Hessians, but the variable is complex. Use ForwardBackward or "
            "PrimalDual, or give real and imaginary parts as an axis."
        )


def _require_inside(geometry: Geometry, x0: Var) -> None:
    if not all(holds(torch.isfinite(t.detach())) for t in tree.leaves(x0)):
        raise InputError("x0 holds NaN or infinite values.")
    geometry.require_interior(tree.detach(x0))


def neutral(geometry: Geometry, term: Function, shape: Var) -> Var:
    """The geometry's centre moved into the constraint of ``term``; its other parts stay out."""
    if isinstance(term, Separable):
        parts = zip(blocks_of(geometry, len(shape)), term.blocks, shape, strict=True)
        return tuple(neutral(block, part, t) for block, part, t in parts)
    core = term.prox_parts(geometry).core
    return mirror_prox(core, geometry, geometry.centre(shape), 1.0)


def fitted(x0: Var, shape: Var | None, name: str) -> Var:
    """A start with all axes of a variable of this shape; refused where it does not belong to it.

    Batch axes that a start has not would be missing in what is kept for each element of a batch.
    """
    if shape is None:
        return x0
    require_fitting(x0, shape, name)
    return tree_map(lambda t, s: t.expand(tree.joint_shape(t.shape, s.shape)), x0, shape)


def require_fitting(x0: Var, shape: Var, name: str) -> None:
    """Refuse a start that does not belong to a problem whose variable has this shape."""
    if _blocks(x0) != _blocks(shape):
        raise InputError(
            f"{name} is {_blocks(x0)}, but the problem's variable is {_blocks(shape)}."
        )
    for given, expected in zip(tree.leaves(x0), tree.leaves(shape), strict=True):
        if given.dtype != expected.dtype:
            raise InputError(
                f"{name} is {given.dtype} but the problem's data are {expected.dtype}. "
                f"{_how_to_convert(given, expected)}"
            )
        if given.device != expected.device:
            raise InputError(
                f"{name} is on {given.device} but the problem's data are on {expected.device}."
            )
        try:
            tree.joint_shape(given.shape, expected.shape)
        except RuntimeError:
            raise InputError(
                f"{name} has shape {tuple(given.shape)}, but the problem's variable has shape "
                f"{tuple(expected.shape)}."
            ) from None


def _how_to_convert(given: Tensor, expected: Tensor) -> str:
    if expected.is_complex() and not given.is_complex():
        return (
            "Give a complex one, or see real images by operators.AsComplex() before the operator."
        )
    return "Convert one of them; legato never mixes precisions silently."


def _blocks(x: Var) -> str:
    return f"a tuple of {len(tree.leaves(x))}" if isinstance(x, tuple) else "one tensor"


def require_sound_mirror(geometry: Geometry, y: Var, who: str) -> None:
    """Refuse NaN, infinity and mirror variables that belong to no point."""
    if not all(holds(torch.isfinite(t)) for t in tree.leaves(y)):
        raise DivergenceError(
            f"{who} diverged: its state holds NaN or infinity. The step is too large for this "
            "problem, or a callable returned non-finite values. Try a smaller step, "
            "step_size=legato.Backtracking(), or float64."
        )
    if not holds(geometry.mirror_interior(y)):
        raise DomainError(
            f"{who} left the range of ∇ψ of {geometry!r}: a subproblem has no solution because the "
            "step is too large, or one that is too large for its precision. Try a smaller step, or "
            "float64."
        )


def as_bound(value: Any, like: Tensor) -> Tensor:
    """A constant or norm as a tensor beside ``like``, in its graph: iterates depend on steps."""
    like = tree.real_like(like)
    return value.to(like) if isinstance(value, Tensor) else as_step(value, like)


def as_step(value: Any, like: Tensor) -> Tensor:
    """A given step as a tensor beside ``like``; a number needs no copy, which none captures."""
    like = tree.real_like(like)
    if isinstance(value, Tensor):
        return value.detach().to(like)
    return like.new_full((), float(value)).detach()


def require_positive_step(step: object, name: str) -> None:
    """Refuse zero, negative and NaN steps, and arrays."""
    if isinstance(step, Tensor) or hasattr(step, "__array__"):
        require_tensor_or_number(step, name)
    if isinstance(step, torch.Tensor):
        if step.numel() == 0:
            raise StepError(f"{name} is empty (shape {tuple(step.shape)}).")
        if not is_concrete():
            return
        sound = (step.detach() > 0) & (step.detach() < float("inf"))
        if bool(sound.all()):
            return
        wrong = float(step.detach()[~sound].flatten()[0])
        why = (
            f": the data are too small for {step.dtype}. Scale them up, or use float64"
            if wrong > 0
            else ""
        )
        raise StepError(f"{name} must be positive and finite, but has entry {wrong:g}{why}.")
    if isinstance(step, (int, float)) and not 0 < step < float("inf"):
        raise StepError(f"{name} must be positive and finite, not {step!r}.")


def constant_where_coupled(bound: Tensor, term: Function, x: Var) -> Tensor:
    """The largest entries along axes that a prox couples, for a step must not vary there."""
    if isinstance(x, tuple):  # whose terms couple no axes
        return bound
    for dim in term.prox_couples():
        axis = dim if dim < 0 else dim - x.ndim
        if bound.ndim >= -axis:
            bound = bound.amax(axis, keepdim=True)
    return bound


def one_for_each(problem: Any, x: Var, coupled: int | None = 0) -> Tensor:
    """Ones that broadcast against x, one for each element of its batch.

    ``coupled`` trailing axes (None: all) belong together for another reason than the problem's.
    """
    if isinstance(x, tuple) or coupled is None:
        return tree.real_like(tree.leaves(x)[0]).new_ones(())
    batch = min(problem.batch(x), x.ndim - coupled)
    return tree.real_like(x).new_ones((*x.shape[:batch], *(1,) * (x.ndim - batch)) if batch else ())
