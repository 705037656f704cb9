"""Quadratic and linear programs written in cvxpy, as a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from legato._support.checks import describe, require_tensor
from legato.errors import InputError, MissingExtraError
from legato.nn.programs.linear import LinearProgram
from legato.nn.programs.quadratic import QuadraticProgram

_PARTS = {"P": "Q", "q": "c", "A": "A", "b": "b", "F": "G", "G": "h"}
"""Names of the data in cvxpy's form and here."""
_SIGNS = {"nonneg": 1.0, "pos": 1.0, "nonpos": -1.0, "neg": -1.0}
_ALIKE = 1e-9


def from_cvxpy(
    problem: Any,
    parameters: Sequence[Any],
    variables: Sequence[Any] | None = None,
    layer: QuadraticProgram | LinearProgram | None = None,
) -> nn.Module:
    r"""A layer that solves a cvxpy problem: values of its parameters in, its variables out.

    .. math:: x(p) = \arg\min_x\; \tfrac12 x^⊤Q(p)x + c(p)^⊤x \quad
              \text{s.t.}\quad A(p)x = b(p),\; G(p)x ≤ h(p)

    Q, c, A, b, G and h are those that cvxpy itself makes of the problem. They are affine in the
    parameters p, as its rules for them demand, and are read once, when the layer is made, by one
    call for each entry of a parameter. What is not a quadratic or linear program is refused.

    Args:
        problem (cvxpy.Problem): a quadratic or linear program that follows the rules for parameters
            (``problem.is_dpp()``).
        parameters (Sequence[cvxpy.Parameter]): all of its parameters, in the order of the layer's
            arguments.
        variables (Sequence[cvxpy.Variable], optional): those that the layer returns.
            Default: ``problem.variables()``
        layer (QuadraticProgram or LinearProgram, optional): what solves it, as
            ``LinearProgram(LPGD())``. Default: one without settings, after the objective

    Returns:
        torch.nn.Module: takes tensors (…, shape of each parameter), whose leading axes are batches,
        and returns a tuple of tensors (…, shape of each variable).

    Reference: Agrawal et al. (2019), Differentiable convex optimization layers.

    >>> import cvxpy as cp
    >>> x, target = cp.Variable(2), cp.Parameter(2)
    >>> problem = cp.Problem(cp.Minimize(cp.sum_squares(x - target)), [x >= 0, cp.sum(x) == 1])
    >>> project = from_cvxpy(problem, [target])
    >>> project(torch.tensor([[0.5, 0.1], [0.9, 0.7]]))[0]
    tensor([[0.7000, 0.3000],
            [0.6000, 0.4000]])
    """
    try:
        import cvxpy
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "from_cvxpy needs cvxpy: pip install cvxpy.", name="cvxpy"
        ) from error
    chosen = list(problem.variables() if variables is None else variables)
    _require_program(problem, parameters, chosen)
    before = [parameter.value for parameter in parameters]
    try:
        maps, places = _read(cvxpy, problem, list(parameters), chosen)
    finally:
        for parameter, value in zip(parameters, before, strict=True):
            parameter.value = value
    shapes = [tuple(p.shape) for p in parameters], [tuple(v.shape) for v in chosen]
    return _Program(maps, places, shapes, [p.name() for p in parameters], layer)


def _require_program(problem: Any, parameters: Sequence[Any], variables: list[Any]) -> None:
    """Refuse what the layer could not solve or differentiate, saying which rule it breaks."""
    if not problem.is_dcp():
        raise InputError("The problem does not follow cvxpy's rules for convex problems (DCP).")
    if not problem.is_dpp():
        raise InputError(
            "The problem is not affine in its parameters by cvxpy's rules (problem.is_dpp() is "
            "False): give products of parameters as one parameter, and a quadratic form by its "
            "factor, sum_squares(F @ x)."
        )
    if problem.is_mixed_integer():
        raise InputError("The problem has integer variables: its solution has no derivative.")
    if not problem.is_qp():
        raise InputError(
            "The problem is neither a quadratic nor a linear program: it has cones (norms of order "
            "two, exponentials, semi-definite matrices), which legato.nn does not solve. "
            "cvxpylayers does; squares of norms are quadratic, sum_squares."
        )
    given, needed = {p.id for p in parameters}, {p.id for p in problem.parameters()}
    if given != needed or len(parameters) != len(given):
        names = sorted(p.name() for p in problem.parameters())
        raise InputError(
            f"parameters must hold each parameter of the problem once: it has {names}, but "
            f"{sorted(p.name() for p in parameters)} were given."
        )
    known = {v.id for v in problem.variables()}
    for variable in variables:
        if variable.id not in known:
            raise InputError(f"The problem has no variable {variable.name()}.")
    for parameter in parameters:
        others = [k for k, v in parameter.attributes.items() if v and k not in _SIGNS]
        if others or parameter.is_complex():
            kind = others[0] if others else "complex"
            raise InputError(
                f"The parameter {parameter.name()} is {kind}: its entries are not free, so that "
                "there is no gradient in each. Make it of a plain parameter."
            )


@dataclass
class _Map:
    """Numbers that are affine in the parameters: base + Σ_k p_k·changes_k, by entries."""

    shape: tuple[int, ...]
    base: Tensor
    entries: Tensor
    columns: Tensor
    changes: Tensor

    def __call__(self, p: Tensor) -> Tensor:
        base = self.base.to(p)
        if self.entries.numel() == 0:
            return base.reshape(self.shape)
        moved = p[..., self.columns.to(p.device)] * self.changes.to(p)
        whole = base.expand(*p.shape[:-1], -1).index_add(-1, self.entries.to(p.device), moved)
        return whole.reshape(*p.shape[:-1], *self.shape)


def _read(
    cvxpy: Any, problem: Any, parameters: list[Any], variables: list[Any]
) -> tuple[dict[str, _Map], Tensor]:
    """All data as maps of the parameters, and where variables are in x, as a matrix.

    Terms tᵀv are added to the objective: how c depends on t says which entries of x are v.
    """
    probes = [cvxpy.Parameter(v.shape, value=np.zeros(v.shape)) for v in variables]
    sign = 1.0 if isinstance(problem.objective, cvxpy.Minimize) else -1.0
    terms = [cvxpy.sum(cvxpy.multiply(t, v)) for t, v in zip(probes, variables, strict=True)]
    objective = type(problem.objective)(problem.objective.expr + sign * sum(terms))
    whole = cvxpy.Problem(objective, problem.constraints)
    for parameter in parameters:
        attributes = [k for k, v in parameter.attributes.items() if v]
        start = _SIGNS[attributes[0]] if attributes else 0.0
        parameter.value = np.full(parameter.shape, start)

    def data() -> dict[str, Any]:
        found = whole.get_problem_data(cvxpy.OSQP)[0]
        if any(found.get(k) is not None for k in ("lower_bounds", "upper_bounds")):
            raise InputError(
                "Variables with bounds=[…] are not read yet: write the bounds as constraints."
            )
        return {k: _flat(found[k]) for k in _PARTS}

    base = data()
    points = [_entries(p, data) for p in parameters]
    changes = [change for group in points for change in group]
    maps = {}
    for name, ours in _PARTS.items():
        shape, start = base[name]
        entries, columns, values = [], [], []
        moved = start.copy()
        for k, (size, found) in enumerate(changes):
            difference = (found[name][1] - start) / size
            at = difference.nonzero()[0]
            entries.append(at)
            columns.append(np.full(len(at), k))
            values.append(difference[at])
            moved += -_offset(parameters, k) * difference
        joined = [np.concatenate([[], *v]) for v in (entries, columns, values)]
        maps[ours] = _Map(
            shape,
            torch.tensor(moved),
            torch.tensor(joined[0], dtype=torch.long),
            torch.tensor(joined[1], dtype=torch.long),
            torch.tensor(joined[2]),
        )
    _require_affine(parameters, data, maps)
    places = [
        (found["q"][1] - base["q"][1]) / size
        for probe in probes
        for size, found in _entries(probe, data)
    ]
    return maps, torch.tensor(np.array(places).reshape(-1, base["q"][1].size))


def _flat(value: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and entries; cvxpy's matrices are sparse."""
    dense = value.toarray() if hasattr(value, "toarray") else np.asarray(value, dtype=float)
    return dense.shape, dense.reshape(-1)


def _entries(parameter: Any, data: Callable[[], dict[str, Any]]) -> list[tuple[float, Any]]:
    """The data after each entry has been moved by one, away from zero."""
    start, found = np.array(parameter.value, dtype=float), []
    for at in np.ndindex(*start.shape):
        moved = start.copy()
        step = -1.0 if start[at] < 0 else 1.0
        moved[at] += step
        parameter.value = moved
        found.append((step, data()))
    parameter.value = start
    return found


def _offset(parameters: list[Any], k: int) -> float:
    """The value of the k-th entry at which the data were read."""
    sizes = np.cumsum([p.size for p in parameters])
    return float(np.asarray(parameters[int(np.searchsorted(sizes, k, side="right"))].value).flat[0])


def _require_affine(
    parameters: list[Any], data: Callable[[], dict[str, Any]], maps: dict[str, _Map]
) -> None:
    """Hold the maps against the data at another point."""
    rng = np.random.default_rng(0)
    starts = [np.array(p.value, dtype=float) for p in parameters]
    for parameter, start in zip(parameters, starts, strict=True):
        parameter.value = np.where(start < 0, -1, 1) * (0.5 + rng.random(start.shape))
    values = [np.asarray(p.value, dtype=float).reshape(-1) for p in parameters]
    p, found = torch.tensor(np.concatenate([[], *values])), data()
    for parameter, start in zip(parameters, starts, strict=True):
        parameter.value = start
    for name, ours in _PARTS.items():
        truth = torch.tensor(found[name][1])
        wrong = (maps[ours](p).reshape(-1) - truth).abs()
        if wrong.numel() and float(wrong.max()) > _ALIKE * (1 + float(truth.abs().max())):
            raise InputError("cvxpy's data are not affine in the parameters of this problem.")


class _Program(nn.Module):
    """A cvxpy problem, solved by legato."""

    def __init__(
        self,
        maps: dict[str, _Map],
        places: Tensor,
        shapes: tuple[list[tuple[int, ...]], list[tuple[int, ...]]],
        names: list[str],
        layer: QuadraticProgram | LinearProgram | None,
    ) -> None:
        super().__init__()
        self._maps, self._places, self._shapes, self._names = maps, places, shapes, names
        linear = maps["Q"].entries.numel() == 0 and not bool(maps["Q"].base.any())
        if isinstance(layer, LinearProgram) and not linear:
            raise InputError("The objective has squares, which LinearProgram does not take.")
        self.layer = layer or (LinearProgram() if linear else QuadraticProgram())

    def extra_repr(self) -> str:
        taken = ", ".join(f"{n} {s}" for n, s in zip(self._names, self._shapes[0], strict=True))
        return f"parameters: {taken or 'none'}; variables: {len(self._shapes[1])}"

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        shapes = self._shapes[0]
        if len(values) != len(shapes):
            raise InputError(f"The layer takes {len(shapes)} tensors, not {len(values)}.")
        flat, batch = [], torch.Size()
        for value, shape, name in zip(values, shapes, self._names, strict=True):
            require_tensor(value, name)
            leading = value.shape[: value.ndim - len(shape)]
            if value.shape[len(leading) :] != shape:
                raise InputError(
                    f"The parameter {name} is of shape (…{''.join(f', {s}' for s in shape)}), but "
                    f"a tensor {describe(value)} was given."
                )
            try:
                batch = torch.broadcast_shapes(batch, leading)
            except RuntimeError:
                raise InputError(
                    f"The parameter {name} of shape {describe(value)} does not fit a batch of "
                    f"shape {tuple(batch)}."
                ) from None
            if 0 in leading:
                raise InputError(
                    f"The parameter {name} {describe(value)} has a batch of no instances."
                )
            flat.append(value.reshape(*leading, -1))
        like = flat[0] if flat else self._places
        if any(f.dtype != like.dtype or f.device != like.device for f in flat):
            raise InputError("Parameters must share one dtype and one device: convert them.")
        rows = [f.expand(*batch, -1) for f in flat]
        p = torch.cat(rows, -1) if rows else like.new_zeros(0)
        data: dict[str, Any] = {name: make(p) for name, make in self._maps.items()}
        for matrix, side in (("A", "b"), ("G", "h")):
            if data[matrix].shape[-2] == 0:
                del data[matrix], data[side]
        if isinstance(self.layer, LinearProgram):
            del data["Q"]
        x = self.layer(**data)
        found = x @ self._places.to(x).mT
        # What only constants decide is not a batch, but its answer is.
        found = found.expand(*batch, found.shape[-1])
        parts = found.split([int(np.prod(s)) for s in self._shapes[1]], -1)
        return tuple(
            part.reshape(*batch, *s) for part, s in zip(parts, self._shapes[1], strict=True)
        )
