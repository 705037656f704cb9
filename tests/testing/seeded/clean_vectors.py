"""Clean layers that couple the entries of one element: orders, norms, softmax, losses."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from makers import rand, randn
from testing.seeded.case import Clean, dot, spread
from testing.seeded.clean_projections import PROJECTIONS, second_order_cone, simplex


def _rows(seed, shape=(3, 6)):
    return lambda: (spread(*shape, seed=seed),)


def _soft_sort(x):
    """A sorting network whose comparators are smooth."""
    columns = list(x.unbind(-1))
    for round_ in range(len(columns)):
        for i in range(round_ % 2, len(columns) - 1, 2):
            a, b = columns[i], columns[i + 1]
            s = torch.sigmoid(3 * (b - a))
            columns[i], columns[i + 1] = s * a + (1 - s) * b, s * b + (1 - s) * a
    return torch.stack(columns, -1)


def _network(x):
    """A sorting network of exact comparators."""
    columns = list(x.unbind(-1))
    for round_ in range(len(columns)):
        for i in range(round_ % 2, len(columns) - 1, 2):
            a, b = columns[i], columns[i + 1]
            columns[i], columns[i + 1] = torch.minimum(a, b), torch.maximum(a, b)
    return torch.stack(columns, -1)


ORDER = {
    "sort": lambda x: x.sort(-1).values,
    "maximum": lambda x: x.amax(-1),
    "minimum": lambda x: x.min(-1).values,
    "median": lambda x: x.median(-1).values,
    "quantile": lambda x: x.quantile(0.3, dim=-1),
    "cumulative maximum": lambda x: x.cummax(-1).values,
    "largest k": lambda x: x.topk(3, dim=-1).values,
    "mid-range": lambda x: (x.amax(-1) + x.amin(-1)) / 2,
    "range": lambda x: x.amax(-1) - x.amin(-1),
    "distance from the median": lambda x: x - x.median(-1, keepdim=True).values,
    "sorting network": _network,
    "smooth sorting network": _soft_sort,
    "sum of the k largest sizes": lambda x: x.abs().topk(2, dim=-1).values.sum(-1),
    "total variation": lambda x: x.diff(dim=-1).abs().sum(-1),
    "hinge": lambda x: F.relu(1 - x[..., :1] + x[..., 1:]).sum(-1),
    "largest size": lambda x: x.norm(p=float("inf"), dim=-1),
    "sum of sizes": lambda x: x.abs().sum(-1),
}

SMOOTH = {
    "softmax": lambda x: x.softmax(-1),
    "log-softmax": lambda x: x.log_softmax(-1),
    "softmin": lambda x: F.softmin(x, -1),
    "log-sum-exp": lambda x: x.logsumexp(-1),
    "cumulative log-sum-exp": lambda x: x.logcumsumexp(-1),
    "cumulative sum": lambda x: x.cumsum(-1),
    "cumulative product": lambda x: x.cumprod(-1),
    "euclidean norm": lambda x: x.norm(dim=-1),
    "p-norm": lambda x: x.norm(p=3, dim=-1),
    "variance": lambda x: x.var(-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "normalisation": lambda x: F.normalize(x, dim=-1),
    "rms norm": lambda x: x / (dot(x, x) / x.shape[-1]).sqrt(),
    "rms norm with eps": lambda x: x / (dot(x, x) / x.shape[-1] + 1e-3).sqrt(),
    "gated unit": lambda x: F.glu(x, -1),
    "permutation": lambda x: x.roll(2, -1).flip(-1),
    "autocorrelation": lambda x: torch.fft.irfft(torch.fft.rfft(x).abs().square(), n=x.shape[-1]),
    "tempered softmax": lambda x: (x / (0.5 + x.var(-1, keepdim=True))).softmax(-1),
    "entropy of softmax": lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1),
}


def _family(functions, start, inputs):
    for seed, (kind, function) in enumerate(functions.items(), start=start):
        yield Clean(kind, kind, lambda f=function: f, inputs(seed))


def _normal(seed, shape=(3, 6), scale=1.0):
    return lambda: (scale * randn(*shape, seed=seed),)


def _single(kind, function, inputs, **known):
    known.setdefault("batch", ())
    return Clean(known.pop("name", f"{kind}, one vector"), kind, lambda: function, inputs, **known)


MORE = [
    # One vector without a batch.
    *(_single(k, ORDER[k], _rows(s, (7,))) for s, k in enumerate(list(ORDER)[:8], 300)),
    *(_single(k, SMOOTH[k], _normal(s, (6,))) for s, k in enumerate(list(SMOOTH)[:8], 320)),
    *(_single(k, PROJECTIONS[k], _normal(s, (6,))) for s, k in enumerate(PROJECTIONS, 340)),
    # Scales.
    *(
        _single(k, SMOOTH[k], _normal(s, scale=scale), name=f"{k} at {scale:g}", batch=(0,))
        for s, scale in ((360, 1e-4), (361, 1e5))
        for k in ("euclidean norm", "normalisation", "rms norm", "log-sum-exp", "cumulative sum")
    ),
    *(
        _single(k, f, _normal(s, scale=scale), name=f"{k} at {scale:g}", batch=(0,))
        for s, scale in ((362, 1e-4), (363, 1e5))
        for k, f in (
            ("simplex projection", simplex),
            ("sort", ORDER["sort"]),
            ("second-order cone", second_order_cone),
        )
    ),
    # Ties.
    *(
        Clean(
            f"{k} at a tie",
            k,
            lambda f=ORDER[k]: f,
            lambda: (torch.tensor([[1.0, 2.0, 2.0, 0.5], [3.0, 3.0, 1.0, 0.0]]).double(),),
            ties=True,
        )
        for k in ("sort", "maximum", "minimum", "cumulative maximum", "total variation", "median")
    ),
    Clean(
        "orthant projection of zeros",
        "orthant projection",
        lambda: lambda x: x.clamp(min=0),
        lambda: (torch.tensor([[0.0, 1.0, -1.0], [0.0, 0.0, 2.0]]).double(),),
        ties=True,
    ),
    # Scalars of one batch or none.
    Clean(
        "cross entropy",
        "loss",
        lambda: lambda x: F.cross_entropy(x, torch.tensor([0, 2, 1])),
        _normal(380),
        batch=(),
    ),
    Clean(
        "mean squared error",
        "loss",
        lambda: F.mse_loss,
        lambda: (randn(3, 5, seed=381), randn(3, 5, seed=382)),
        batch=(),
    ),
    Clean(
        "smooth l1 loss",
        "loss",
        lambda: F.smooth_l1_loss,
        lambda: (randn(3, 5, seed=383), randn(3, 5, seed=384)),
        batch=(),
    ),
    Clean(
        "divergence of softmaxes",
        "loss",
        lambda: lambda x, y: (x.softmax(-1) * (x.log_softmax(-1) - y.log_softmax(-1))).sum(),
        lambda: (randn(3, 5, seed=385), randn(3, 5, seed=386)),
        batch=(),
    ),
    Clean(
        "cosine similarity",
        "cosine similarity",
        lambda: lambda x, y: F.cosine_similarity(x, y),
        lambda: (randn(3, 5, seed=387), randn(3, 5, seed=388)),
        batch=(0, 1),
    ),
    Clean(
        "triplet loss",
        "loss",
        lambda: lambda a, p, n: F.triplet_margin_loss(a, p, n, reduction="none", margin=2.0),
        lambda: tuple(randn(3, 5, seed=s) for s in (389, 390, 391)),
        batch=(0, 1, 2),
    ),
    # Batch elements that are coupled by design.
    Clean(
        "batch norm in training",
        "batch norm",
        lambda: lambda x: F.batch_norm(x, None, None, training=True),
        _normal(392),
        coupled=True,
    ),
    Clean(
        "batch norm of images",
        "batch norm",
        lambda: lambda x: F.batch_norm(x, None, None, training=True),
        _normal(393, (3, 2, 3, 3)),
        coupled=True,
    ),
    Clean(
        "batch norm in use",
        "batch norm, fixed",
        lambda: (
            lambda x: F.batch_norm(
                x, torch.linspace(-1, 1, 6).to(x), torch.linspace(0.5, 2, 6).to(x)
            )
        ),
        _normal(394),
    ),
    Clean(
        "contrastive loss",
        "contrastive loss",
        lambda: lambda x, y: F.cross_entropy(x @ y.T / math.sqrt(5), torch.arange(len(x))),
        lambda: (randn(3, 5, seed=395), randn(3, 5, seed=396)),
        batch=(0, 1),
        coupled=True,
    ),
    Clean(
        "pairwise distances",
        "pairwise distances",
        lambda: lambda x: torch.pdist(x),
        _normal(397),
        coupled=True,
    ),
    Clean(
        "softmax over the batch",
        "softmax",
        lambda: lambda x: x.softmax(0),
        _normal(398),
        coupled=True,
    ),
    Clean(
        "whitening",
        "whitening",
        lambda: (
            lambda x: (
                torch.linalg.solve_triangular(
                    torch.linalg.cholesky(torch.cov(x.T)), (x - x.mean(0)).T, upper=False
                ).T
            )
        ),
        _normal(399, (8, 3)),
        coupled=True,
    ),
    # Modules with parameters of their own.
    Clean(
        "linear module",
        "linear",
        lambda: _module(lambda: nn.Linear(6, 4)),
        _normal(400),
        follows=False,
    ),
    Clean(
        "two-layer network",
        "network",
        lambda: _module(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))),
        _normal(401),
        follows=False,
    ),
    Clean(
        "layer norm module",
        "layer norm",
        lambda: _module(lambda: nn.LayerNorm(6)),
        _normal(402),
        follows=False,
    ),
    Clean(
        "gated recurrent unit",
        "recurrent",
        lambda: (lambda m: lambda x: m(x)[0])(_module(lambda: nn.GRU(4, 3, batch_first=True))),
        _normal(403, (3, 5, 4)),
        follows=False,
    ),
    Clean("dropout in use", "dropout, off", lambda: nn.Dropout(0.5).eval(), _normal(404)),
]


def _module(make):
    """A module in float64 with the same parameters each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().eval()


VECTORS = [
    *_family(ORDER, 200, lambda s: _rows(s)),
    *_family(SMOOTH, 230, _normal),
    *_family(PROJECTIONS, 260, _normal),
    Clean(
        "mixtures",
        "weighted mean",
        lambda: lambda x, w: (x * w.softmax(-1)).sum(-1),
        lambda: (randn(3, 5, seed=290), rand(5, seed=291)),
    ),
    *MORE,
]
