"""A copy of a problem in another precision, with known parameters."""

from __future__ import annotations

import copy
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from legato._support import tree
from legato._support.graph import leaves_behind
from legato.diagnostics.setting import Setting

LIBRARIES = {"torch", "legato", "numpy", "builtins", "functools", "math", "operator"}
"""Functions of these packages hold no data of the user's."""


@dataclass(frozen=True, eq=False)
class Replica:
    """A setting whose tensors are fresh leaves, and how these depend on the parameters θ.

    ``originals`` are the tensors found in the user's objects that record gradients, ``copies`` what
    stands in their place. An original may be computed from θ: then the chain rule goes through it.
    """

    setting: Setting
    dtype: torch.dtype
    params: list[Tensor]
    originals: list[Tensor]
    copies: list[Tensor]

    def pull(self, cotangents: Sequence[Tensor | None]) -> Tensor:
        """From cotangents of the copies to the gradient in θ, as one flat vector."""
        pairs = [
            (o, g.to(o))
            for o, g in zip(self.originals, cotangents, strict=True)
            if g is not None and o.requires_grad
        ]
        grads: Sequence[Tensor | None] = [None] * len(self.params)
        if pairs:
            grads = torch.autograd.grad(
                [o for o, _ in pairs],
                self.params,
                [g for _, g in pairs],
                retain_graph=True,
                allow_unused=True,
            )
        return flat(grads, self.params).to(self.dtype)

    def push(self, direction: Sequence[Tensor]) -> list[Tensor]:
        """From a direction in θ to the directions of the copies."""
        dummies = [torch.zeros_like(o).requires_grad_() for o in self.originals]
        with torch.enable_grad():
            pulled = torch.autograd.grad(
                self.originals,
                self.params,
                dummies,
                retain_graph=True,
                create_graph=True,
                allow_unused=True,
            )
            along = [(p * d).sum() for p, d in zip(pulled, direction, strict=True) if p is not None]
            pushed = torch.autograd.grad(
                torch.stack(along).sum(), dummies, retain_graph=True, allow_unused=True
            )
        return [
            torch.zeros_like(c) if t is None else t.to(c)
            for t, c in zip(pushed, self.copies, strict=True)
        ]


def flat(grads: Sequence[Tensor | None], params: Sequence[Tensor]) -> Tensor:
    """One vector of all gradients, with 0 for none."""
    pieces = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, params, strict=True)]
    return torch.cat([g.detach().reshape(-1) for g in pieces])


def replicate(setting: Setting, params: list[Tensor], dtype: torch.dtype) -> Replica | None:
    """A copy in ``dtype``, or None where the user's objects do not allow one.

    Dataclasses, modules, containers and plain functions (closures and the globals that they name)
    are copied by :func:`copy.deepcopy` around replaced tensors. The copy is tried out: it must
    compute in ``dtype``, touch no tensor of the original, and give the same loss.
    """
    tensors, functions, modules = _find(setting)
    memo: dict[int, Any] = {id(m): m for m in modules}
    originals, copies = [], []
    for t in tensors:
        memo[id(t)] = _converted(t, dtype)
        if t.requires_grad:
            originals.append(t)
            copies.append(memo[id(t)])
    try:
        _rebuild_functions(functions, memo)
        twin: Setting = copy.deepcopy(setting, memo)
        sound = _behaves(twin, setting, copies, dtype)
    except Exception:  # whatever a user's object raises when copied or converted
        return None
    return Replica(twin, dtype, params, originals, copies) if sound else None


def _converted(t: Tensor, dtype: torch.dtype) -> Tensor:
    fresh = t.detach().clone()
    if t.is_floating_point():
        fresh = fresh.to(dtype)
    if isinstance(t, nn.Parameter):
        return nn.Parameter(fresh, requires_grad=t.requires_grad)
    return fresh.requires_grad_(t.requires_grad)


def _behaves(twin: Setting, setting: Setting, copies: list[Tensor], dtype: torch.dtype) -> bool:
    with torch.enable_grad():
        value, state = _two_steps(twin)
        again, _ = _two_steps(twin)
    known = {id(c) for c in copies}
    if any(id(t) not in known for t in lasting_leaves(value, again)):
        return False
    floating = [t for t in (value, *tree.leaves(state)) if t.is_floating_point()]
    if any(t.dtype != dtype for t in floating):
        return False
    with torch.no_grad():
        expected, _ = _two_steps(setting)
    return abs(float(value.detach()) - float(expected)) <= 1e-3 * (1 + abs(float(expected)))


def lasting_leaves(value: Tensor, again: Tensor) -> list[Tensor]:
    """The leaves behind two evaluations of the same: not those that callables make on the way."""
    later = {id(t) for t in leaves_behind([again], [])}
    return [t for t in leaves_behind([value], []) if id(t) in later]


def _two_steps(setting: Setting) -> tuple[Tensor, Any]:
    state = setting.start()
    for _ in range(2):
        state = setting.algorithm.step(setting.problem, state)
    return setting.value(state), state


# --- finding and rebuilding -----------------------------------------------------------------------


def _find(root: Any) -> tuple[list[Tensor], list[types.FunctionType], list[types.ModuleType]]:
    """Tensors, user-written functions and modules that can be reached from an object."""
    tensors: list[Tensor] = []
    functions: list[types.FunctionType] = []
    modules: list[types.ModuleType] = []
    seen: dict[int, Any] = {}
    stack = [root]
    while stack:
        obj = stack.pop()
        if id(obj) in seen:
            continue
        seen[id(obj)] = obj
        if isinstance(obj, Tensor):
            tensors.append(obj)
        elif isinstance(obj, types.FunctionType):
            if (obj.__module__ or "").split(".")[0] not in LIBRARIES:  # None under a bare exec
                functions.append(obj)
                stack.extend(cell.cell_contents for cell in obj.__closure__ or ())
                stack.extend(_named_globals(obj).values())
        elif isinstance(obj, types.ModuleType):
            modules.append(obj)
        elif isinstance(obj, types.MethodType):
            stack.append(obj.__self__)
        elif isinstance(obj, dict):
            stack.extend(obj.values())
        elif isinstance(obj, (list, tuple, set, frozenset)):
            stack.extend(obj)
        elif hasattr(obj, "func") and hasattr(obj, "keywords"):  # functools.partial
            stack.extend((obj.func, obj.args, obj.keywords))
        elif hasattr(obj, "__dict__") and not isinstance(obj, type):
            stack.extend(vars(obj).values())
    return tensors, functions, modules


def _named_globals(function: types.FunctionType) -> dict[str, Any]:
    """Globals that a function, or one defined in it, names."""
    codes, names = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
    known = function.__globals__
    return {n: known[n] for n in names if n in known and not isinstance(known[n], type)}


def _rebuild_functions(functions: list[types.FunctionType], memo: dict[int, Any]) -> None:
    """Functions over copied cells and globals; entered into ``memo`` before they are filled."""
    cells: dict[int, Any] = {}
    worlds: dict[int, dict[str, Any]] = {}
    for f in functions:
        closure = tuple(cells.setdefault(id(c), types.CellType()) for c in f.__closure__ or ())
        world = worlds.setdefault(id(f.__globals__), dict(f.__globals__))
        twin = types.FunctionType(f.__code__, world, f.__name__, f.__defaults__, closure)
        twin.__kwdefaults__ = f.__kwdefaults__
        memo[id(f)] = twin
    for f in functions:
        for cell in f.__closure__ or ():
            cells[id(cell)].cell_contents = copy.deepcopy(cell.cell_contents, memo)
        world = worlds[id(f.__globals__)]
        for name, value in _named_globals(f).items():
            world[name] = copy.deepcopy(value, memo)
        twin = memo[id(f)]
        twin.__defaults__ = copy.deepcopy(f.__defaults__, memo)
