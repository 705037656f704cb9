"""Clean layers that act on each entry, with and without kinks, at many shapes and scales."""

import math

import torch
import torch.nn.functional as F

from makers import rand, randn
from testing.seeded.case import Clean, spread

SHAPES = {"()": (), "(n,)": (6,), "(B,n)": (3, 5), "(B,C,H,W)": (2, 2, 3, 4)}


def _normal(shape, seed, scale=1.0):
    return lambda: (scale * randn(math.prod(shape), seed=seed).reshape(shape),)


def _positive(shape, seed):
    return lambda: (0.2 + rand(*shape, seed=seed),)


def _batch(shape):
    return (0,) if len(shape) > 1 else ()


KINKED = {
    "relu": F.relu,
    "absolute value": torch.abs,
    "hard shrinkage": lambda x: F.hardshrink(x, 0.3),
    "soft shrinkage": lambda x: F.softshrink(x, 0.3),
    "clamp": lambda x: x.clamp(-0.6, 0.8),
    "leaky relu": lambda x: F.leaky_relu(x, 0.1),
    "relu6": lambda x: F.relu6(4 * x),
    "hard tanh": F.hardtanh,
    "hard sigmoid": F.hardsigmoid,
    "hard swish": F.hardswish,
    "elu": F.elu,
    "selu": F.selu,
    "threshold": lambda x: F.threshold(x, 0.1, 0.1),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=0.5),
    "triangle wave": lambda x: (x - x.detach().round()).abs(),
    "garrote": lambda x: torch.where(x.abs() > 0.3, x - 0.09 / x, 0 * x),
}

SMOOTH = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "log-sigmoid": F.logsigmoid,
    "exponential": torch.exp,
    "sine": torch.sin,
    "error function": torch.erf,
    "arctangent": torch.atan,
    "inverse hyperbolic sine": torch.asinh,
    "polynomial": lambda x: x**3 - 2 * x,
    "charbonnier": lambda x: (x * x + 0.01).sqrt(),
}

ON_POSITIVE = {
    "logarithm": torch.log,
    "square root": torch.sqrt,
    "reciprocal": torch.reciprocal,
    "power": lambda x: x**1.7,
    "entropy": lambda x: x * x.log(),
    "log-gamma": torch.lgamma,
}


def _everywhere():
    for seed, (kind, function) in enumerate((KINKED | SMOOTH).items(), start=1):
        for label, shape in SHAPES.items():
            # Each function in the shape of a batch; a few of them in the other shapes.
            if label == "(B,n)" or seed % 4 == list(SHAPES).index(label):
                yield Clean(
                    f"{kind} {label}",
                    kind,
                    lambda f=function: f,
                    _normal(shape, seed),
                    _batch(shape),
                )
    for seed, (kind, function) in enumerate(ON_POSITIVE.items(), start=50):
        yield Clean(kind, kind, lambda f=function: f, _positive((3, 5), seed))


def _tensor(*rows):
    return lambda: (torch.tensor(rows, dtype=torch.float64),)


TIES = [
    Clean(
        "relu at 0", "relu", lambda: F.relu, _tensor([0.0, 1.0, -1.0], [2.0, 0.0, 0.0]), ties=True
    ),
    Clean("abs at 0", "absolute value", lambda: torch.abs, _tensor([0.0, 1.0, -2.0]), ties=True),
    Clean(
        "soft shrinkage at its threshold",
        "soft shrinkage",
        lambda: lambda x: F.softshrink(x, 0.5),
        _tensor([0.5, -0.5, 1.0], [0.0, 2.0, 0.5]),
        ties=True,
    ),
    Clean(
        "clamp at its bounds",
        "clamp",
        lambda: lambda x: x.clamp(-1, 1),
        _tensor([1.0, -1.0, 0.5], [-1.0, 3.0, 1.0]),
        ties=True,
    ),
    Clean(
        "leaky relu at 0",
        "leaky relu",
        lambda: lambda x: F.leaky_relu(x, 0.1),
        _tensor([0.0, 1.0], [-1.0, 0.0]),
        ties=True,
    ),
    Clean(
        "hard tanh at 1",
        "hard tanh",
        lambda: F.hardtanh,
        _tensor([1.0, 0.2], [-1.0, 2.0]),
        ties=True,
    ),
    Clean("relu6 at 6", "relu6", lambda: F.relu6, _tensor([6.0, 0.0], [3.0, 7.0]), ties=True),
    Clean(
        "relu of a scalar at 0",
        "relu",
        lambda: F.relu,
        lambda: (torch.zeros((), dtype=torch.float64),),
        batch=(),
        ties=True,
    ),
]

SCALED = [
    Clean(f"{kind} at {scale:g}", kind, lambda f=f: f, _normal((3, 5), seed, scale))
    for seed, scale in ((60, 1e-4), (61, 1e5))
    for kind, f in (
        ("relu", F.relu),
        ("absolute value", torch.abs),
        ("inverse hyperbolic sine", torch.asinh),
        ("softsign", F.softsign),
        ("charbonnier", SMOOTH["charbonnier"]),
        ("polynomial", lambda x: x * x),
    )
] + [
    Clean(
        "shrinkage of small numbers",
        "soft shrinkage",
        lambda: lambda x: F.softshrink(x, 3e-5),
        _normal((3, 5), 62, 1e-4),
    ),
    Clean(
        "shrinkage of large numbers",
        "soft shrinkage",
        lambda: lambda x: F.softshrink(x, 3e4),
        _normal((3, 5), 63, 1e5),
    ),
    Clean(
        "softplus of large numbers",
        "softplus",
        lambda: F.softplus,
        lambda: (30 * randn(3, 5, seed=64),),
    ),
    Clean(
        "columns of many scales",
        "scaling",
        lambda: torch.tanh,
        lambda: (randn(3, 5, seed=65) * torch.logspace(-4, 1, 5, dtype=torch.float64),),
    ),
]

PAIRS = [
    Clean(
        kind,
        kind,
        lambda f=f: f,
        lambda s=s: (spread(3, 5, seed=s), spread(3, 5, seed=s + 7)),
        batch=(0, 1),
    )
    for s, (kind, f) in enumerate(
        {
            "maximum of two": torch.maximum,
            "minimum of two": torch.minimum,
            "product": torch.mul,
            "quotient": lambda x, y: x / (1 + y * y),
            "hypotenuse": torch.hypot,
            "angle": torch.atan2,
            "interpolation of two": lambda x, y: torch.lerp(x, y, 0.3),
            "switch": lambda x, y: torch.where(x > 0, x * y, y - x),
        }.items(),
        start=70,
    )
] + [
    Clean(
        "maximum of two at a tie",
        "maximum of two",
        lambda: torch.maximum,
        lambda: (
            torch.tensor([[1.0, 2.0], [0.0, 3.0]]).double(),
            torch.tensor([[1.0, 0.0], [0.0, 5.0]]).double(),
        ),
        batch=(0, 1),
        ties=True,
    ),
    Clean(
        "affine in three",
        "three inputs",
        lambda: lambda x, w, b: (x * w + b).tanh(),
        lambda: (randn(3, 5, seed=80), randn(5, seed=81), randn(5, seed=82)),
    ),
    Clean(
        "clamp between tensors",
        "three inputs",
        lambda: lambda x, lo, width: torch.minimum(torch.maximum(x, lo), lo + width.exp()),
        lambda: (2 * randn(3, 5, seed=83), randn(5, seed=84), randn(5, seed=85)),
    ),
    Clean(
        "second input idle",
        "idle input",
        lambda: lambda x, y: x.sin(),
        lambda: (randn(3, 5, seed=86), randn(3, 5, seed=87)),
        batch=(0, 1),
        idle=(1,),
    ),
    Clean(
        "first input idle",
        "idle input",
        lambda: lambda x, y: y.exp() + 0 * x.detach(),
        lambda: (randn(3, 5, seed=88), randn(3, 5, seed=89)),
        batch=(0, 1),
        idle=(0,),
    ),
    Clean(
        "idle in three",
        "idle input",
        lambda: lambda x, y, z: x * z,
        lambda: (randn(3, 5, seed=90), randn(4, seed=91), randn(5, seed=92)),
        idle=(1,),
    ),
    Clean(
        "broadcast bias",
        "broadcast",
        lambda: lambda x, b: (x + b).square(),
        lambda: (randn(3, 5, seed=93), randn(1, 5, seed=94)),
    ),
    Clean(
        "broadcast scalar",
        "broadcast",
        lambda: lambda x, t: (x / t).sin(),
        lambda: (randn(3, 5, seed=95), torch.tensor(0.7, dtype=torch.float64)),
    ),
    Clean(
        "weight for each element of the batch",
        "broadcast",
        lambda: lambda x, w: x.tanh() * w,
        lambda: (randn(3, 5, seed=96), randn(3, 1, seed=97)),
        batch=(0, 1),
    ),
]

POINTWISE = [*_everywhere(), *TIES, *SCALED, *PAIRS]
