"""Layers for the referee: right ones of many kinds, and wrong ones with the law that finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import legato as lg
from makers import rand, randn

X = randn(4, 6, seed=1)
MATRICES = randn(3, 5, 5, seed=2) + 4 * torch.eye(5, dtype=torch.float64)
SINGLE = randn(6, 5, seed=3, dtype=torch.float32)


class Case(NamedTuple):
    """A layer, what it is called with, and options of the check."""

    layer: Callable[..., Any]
    inputs: Any
    options: dict[str, Any] = {}  # noqa: RUF012 (never written to)


# --- right ----------------------------------------------------------------------------------------


def soft_threshold(x: Tensor, weight: Tensor) -> Tensor:
    return x.sign() * torch.relu(x.abs() - weight)


def sparsemax(x: Tensor) -> Tensor:
    z = x.sort(-1, descending=True).values
    total = z.cumsum(-1) - 1
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    support = (z > total / count).sum(-1, keepdim=True)
    return torch.relu(x - total.gather(-1, support - 1) / support.to(x.dtype))


def unrolled(b: Tensor, weight: Tensor) -> Tensor:
    x = torch.zeros_like(b)
    for _ in range(10):
        x = soft_threshold(x - 0.3 * (x - b + 0.2 * x.roll(1, -1)), 0.3 * weight)
    return x


def quadratic_program(Q: Tensor, c: Tensor) -> Tensor:
    return -torch.linalg.solve(Q @ Q.mT + torch.eye(Q.shape[-1], dtype=Q.dtype), c)


own = torch.Generator().manual_seed(4)


def noisy(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape, generator=own, dtype=x.dtype)


def projected(A: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(A + A.mT)
    return vectors @ torch.diag_embed(values.relu()) @ vectors.mT


seen: dict[Any, Tensor] = {}


def with_a_cache(x: Tensor) -> Tensor:
    """What it remembers depends on the shape only, so that it cannot be stale."""
    key = (x.shape[-1], x.dtype)
    if key not in seen:
        seen[key] = torch.ones(x.shape[-1], x.shape[-1], dtype=x.dtype).tril()
    return x @ seen[key]


RIGHT = {
    "softmax": Case(lambda x: x.softmax(-1), X),
    "relu": Case(torch.relu, X),
    "relu at zero": Case(torch.relu, torch.zeros(3, 4)),
    "sort": Case(lambda x: x.sort(-1).values, X),
    "sort of ones": Case(lambda x: x.sort(-1).values, torch.ones(3, 5)),
    "norm": Case(lambda x: x.norm(dim=-1), X),
    "median": Case(lambda x: x.median(-1).values, X),
    "quantile": Case(lambda x: x.quantile(0.3, -1), X),
    "cummax": Case(lambda x: x.cummax(-1).values, X),
    "root at the end of its domain": Case(lambda x: (1 + x.sqrt()).log(), X.abs()),
    "normalise": Case(functional.normalize, X, {"scale": 0.0}),
    "linear": Case(nn.Linear(6, 3), X.float()),
    "layer norm": Case(nn.LayerNorm(6), X.float()),
    "batch norm": Case(nn.BatchNorm1d(6), X.float()),
    "attention": Case(
        functional.scaled_dot_product_attention, [randn(2, 3, 4, seed=k) for k in range(3)]
    ),
    "dropout": Case(nn.Dropout(), X.float()),
    "noise of its own": Case(noisy, X),
    "float32 only": Case(lambda x: x @ SINGLE, X.float()),
    "solve": Case(torch.linalg.solve, (MATRICES, randn(3, 5, 2, seed=5))),
    "inverse of one matrix": Case(torch.linalg.inv, MATRICES[0]),
    "eigenvalues": Case(torch.linalg.eigvalsh, MATRICES @ MATRICES.mT),
    "projection on a cone": Case(projected, MATRICES),
    "least squares": Case(
        lambda A, b: torch.linalg.solve(A.mT @ A, A.mT @ b),
        (randn(2, 6, 3, seed=6), randn(2, 6, 1, seed=7)),
    ),
    "quadratic program": Case(quadratic_program, (MATRICES, randn(3, 5, 1, seed=8))),
    "sparsemax": Case(sparsemax, X),
    "soft threshold": Case(soft_threshold, (X, torch.tensor(0.3).double())),
    "unrolled": Case(unrolled, (X, torch.tensor(0.3).double())),
    "several outputs": Case(lambda x: {"a": x.sin(), "b": (x.sum(-1), x.argmax(-1))}, X),
    "no influence": Case(lambda x, y: 2 * x, (X, randn(3))),
    "cache": Case(with_a_cache, X),
    "a prox of legato": Case(lambda x, w: lg.L1(w).prox(x), (X, rand(6))),
    "the simplex": Case(lambda x: lg.Simplex().prox(x), X),
    "an unrolled solve": Case(
        lambda y, w: lg.solve(lg.SquaredDistance(y) + lg.L1(w), stop=lg.Stop(5)).x,
        (randn(6), torch.tensor(0.3).double()),
        {"directions": 2},
    ),
}


# --- wrong ----------------------------------------------------------------------------------------


def with_backward(forward: Callable[..., Any], back: Callable[..., Any]) -> Callable[..., Any]:
    """A layer whose backward pass is written by hand."""

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Any:
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return back(g, *ctx.saved_tensors)

    return Layer.apply


class StaleStep(nn.Module):
    """A step size that is computed once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(6) + 0.1 * randn(6, 6, dtype=torch.float32))
        self.step: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.step is None:
            self.step = float(torch.linalg.matrix_norm(self.weight.detach(), 2) ** -2)
        y = torch.zeros_like(x)
        for _ in range(3):
            y = y - self.step * ((y @ self.weight - x) @ self.weight.mT)
        return y


class SavedOnTheLayer(nn.Module):
    """What the backward pass needs is overwritten by the next call."""

    def forward(self, x: Tensor) -> Tensor:
        self.saved = x.detach()
        return with_backward(torch.sin, lambda g, _: g * self.saved.cos())(x)


class Counting(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + 1e-3 * self.calls)


class DetachedBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() + self.bias.detach()


buffer = torch.zeros(4, 6, dtype=torch.float64)


def into_a_buffer(x: Tensor) -> Tensor:
    if x.shape != buffer.shape or x.dtype != buffer.dtype or x.requires_grad:
        return x.sin()
    return torch.sin(x, out=buffer)


def overwriting(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.clamp_(max=0.5)
    return 2 * x


def no_second_derivative(g: Tensor, x: Tensor) -> Tensor:
    return g * x.detach().exp()


WRONG = {
    "sign": (
        "gradient", "the sign is wrong",
        Case(with_backward(torch.sin, lambda g, x: -g * x.cos()), X),
    ),
    "factor": (
        "gradient", "0.5 times what", Case(with_backward(torch.square, lambda g, x: g * x), X)
    ),
    "missing term": (
        "gradient", "off",
        Case(with_backward(lambda x: x.softmax(-1), lambda g, x: g * x.softmax(-1)), X),
    ),
    "transposed": (
        "gradient", "input 2 .* it is transposed",
        Case(
            with_backward(torch.matmul, lambda g, x, W: (g @ W.mT, g.mT @ x)),
            (X, randn(6, 6, seed=9)),
        ),
    ),
    "shifted": (
        "gradient", "shifted by one along the last axis",
        Case(with_backward(lambda x: x.roll(1, -1), lambda g, x: g), X),
    ),
    "one entry": (
        "gradient", r"wrong at .*, 5\]",
        Case(
            with_backward(torch.exp, lambda g, x: functional.pad((g * x.exp())[:, :-1], (0, 1))), X
        ),
    ),
    "detached input": (
        "gradient", r"no gradient reaches input 2 \(a scalar\)",
        Case(lambda x, w: x * w.detach(), (X, torch.tensor(0.4).double())),
    ),
    "detached parameter": ("gradient", "parameter bias", Case(DetachedBias(), X.float())),
    "weight of zero": (
        "gradient", "input 2 .* is 0 while",
        Case(
            with_backward(
                soft_threshold,
                lambda g, x, w: (g * (x.abs() > w), -(g * x.sign()).sum() * (w > 0)),
            ),
            (X, torch.tensor(0.0).double()),
        ),
    ),
    "end of a domain": (
        "gradient", "0 while",
        Case(
            with_backward(lambda w: w.clamp(min=0) * torch.ones(3).to(w), lambda g, w: 0 * w),
            torch.tensor(0.0).double(),
            {"bounds": [(0.0, None)]},
        ),
    ),
    "tie": (
        "gradient at ties", "set to 0",
        Case(with_backward(torch.abs, lambda g, x: g * torch.where(x == 0, 2.0, x.sign())), X),
    ),
    "sign(x)·relu(|x| − 0) at 0": (
        "gradient at ties", "set to 0", Case(soft_threshold, (X, torch.tensor(0.0).double())),
    ),
    "tie of a maximum": (
        "gradient at ties", "made equal",
        Case(
            with_backward(
                lambda x: x.amax(-1), lambda g, x: g[..., None] * (x == x.amax(-1, keepdim=True))
            ),
            X,
        ),
    ),
    "batch leak": ("batch = elements", "alone", Case(lambda x: x / x.norm(), X, {"batch": True})),
    "wrong axis": ("batch = elements", "alone", Case(lambda x: x.softmax(0), X, {"batch": True})),
    "leak in the gradient": (
        "batch = elements", "gradient",
        Case(with_backward(torch.sin, lambda g, x: g * x.cos() + 0.01 * g.mean(0)), X),
    ),
    "axis that depends on the batch": (
        "batch = elements", "a batch of 6",
        Case(lambda x: x + x.mean(0 if len(x) == x.shape[1] else 1, keepdim=True), X),
    ),
    "stale step": ("repeated calls", "as the first one", Case(StaleStep(), X.float())),
    "hidden state": ("repeated calls", "same call twice", Case(Counting(), X)),
    "saved on the layer": (
        "repeated calls", "between forward and backward", Case(SavedOnTheLayer(), X)
    ),
    "flushed": (
        "backward pass", "1e-06 times the cotangent",
        Case(with_backward(lambda x: 2 * x, lambda g, x: 2 * g * (g.abs() > 1e-5)), X),
    ),
    "in place": ("side effects", "the input is overwritten", Case(overwriting, X)),
    "shared buffer": ("side effects", "overwritten by the next call", Case(into_a_buffer, X)),
    "NaN": ("NaN and infinity", "nan in the input", Case(lambda x: x.nan_to_num().tanh(), X)),
    "NaN in the cotangent": (
        "NaN and infinity", "nan in the cotangent",
        Case(with_backward(torch.sin, lambda g, x: g.nan_to_num() * x.cos()), X),
    ),
    "float32 inside": ("dtype", "digits of float32", Case(lambda x: x.float().sin().to(x), X)),
    "float64 out": ("dtype", "output is float64", Case(lambda x: x.double().sin(), X.float())),
    "strides": (
        "layout and modes", "strided view",
        Case(lambda x: torch.as_strided(x, x.shape, (x.shape[1], 1), 0).sin(), X),
    ),
    "without a gradient": (
        "layout and modes", "needs a gradient|no_grad",
        Case(lambda x: x.sin() if x.requires_grad else 1.01 * x.sin(), X),
    ),
    "second derivative": (
        "double backward", "no second derivative",
        Case(with_backward(torch.exp, no_second_derivative), X),
    ),
    "units": (
        "scale", "scaled by 1e-06",
        Case(lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-3), X, {"scale": 0.0}),
    ),
    "solution": (
        "solution", "off the right one",
        Case(lambda x: 1.01 * x.sin(), X, {"solution": torch.sin}),
    ),
    "residual": (
        "solution", "not solved",
        Case(
            lambda A, b: torch.linalg.solve(1.01 * A, b),
            (MATRICES[0], randn(5, 1)),
            {"residual": lambda x, A, b: A @ x - b},
        ),
    ),
    "adjoint": (
        "solution", "off the adjoint's",
        Case(
            lambda A, b: torch.linalg.solve(A.detach(), b),
            (MATRICES[0], randn(5, 1)),
            {"residual": lambda x, A, b: A @ x - b},
        ),
    ),
}  # fmt: skip
