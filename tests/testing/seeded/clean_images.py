"""Clean layers for images and sequences."""

import torch
import torch.nn.functional as F

from makers import rand, randn
from testing.seeded.case import Clean, spread


def _case(kind, function, inputs, batch=(0,), name=None, **known):
    return Clean(name or kind, kind, lambda: function, inputs, batch, **known)


def _blur_by_fft(x):
    kernel = torch.zeros(x.shape[-2:]).to(x)
    kernel[:3, :3] = torch.arange(1, 10).view(3, 3).to(x) / 45
    return torch.fft.irfft2(torch.fft.rfft2(x) * torch.fft.rfft2(kernel), s=x.shape[-2:])


def _piecewise_linear(x, knots):
    """The interpolant of (0, 1, …) ↦ knots at points in between."""
    place = (x.sigmoid() * (knots.shape[-1] - 1)).clamp(max=knots.shape[-1] - 1 - 1e-9)
    left = place.detach().floor().long()
    share = place - left
    return (1 - share) * knots[left] + share * knots[left + 1]


def _nonlocal_means(x):
    flat = x.flatten(1)
    distances = (flat.unsqueeze(-1) - flat.unsqueeze(-2)).square()
    return ((-distances).softmax(-1) @ flat.unsqueeze(-1)).squeeze(-1).view_as(x)


def _recursion(x):
    """An exponential moving average."""
    state, out = x[..., 0], []
    for column in x.unbind(-1):
        state = 0.7 * state + 0.3 * column.tanh()
        out.append(state)
    return torch.stack(out, -1)


def _dynamic_time_warping(x, y):
    """Its smooth form, with softmin for the minimum."""
    cost = (x.unsqueeze(-1) - y.unsqueeze(-2)).square()
    n, m = cost.shape[-2:]
    table = {}
    for i in range(n):
        for j in range(m):
            before = [table[p] for p in ((i - 1, j), (i, j - 1), (i - 1, j - 1)) if p in table]
            best = -torch.stack([-b for b in before]).logsumexp(0) if before else 0
            table[i, j] = cost[..., i, j] + best
    return table[n - 1, m - 1]


def _longest_path(x):
    """The best score of a path through a grid: dynamic programming with a maximum."""
    best = x[..., 0, :]
    for row in x.unbind(-2)[1:]:
        padded = F.pad(best, (1, 1), value=-1e3)
        best = row + torch.stack([padded[..., :-2], padded[..., 1:-1], padded[..., 2:]]).amax(0)
    return best


def _image(s, channels=1):
    return lambda: (randn(2, channels, 6, 6, seed=s),)


def _distinct(s):
    return lambda: (spread(2, 1, 6, 6, seed=s),)


IMAGES = [
    _case(
        "convolution",
        lambda x, k: F.conv2d(x, k, padding=1),
        lambda: (randn(2, 1, 6, 6, seed=60), randn(3, 1, 3, 3, seed=61)),
    ),
    _case(
        "strided convolution",
        lambda x, k: F.conv2d(x, k, stride=2),
        lambda: (randn(2, 2, 6, 6, seed=62), randn(3, 2, 3, 3, seed=63)),
    ),
    _case(
        "transposed convolution",
        lambda x, k: F.conv_transpose2d(x, k, stride=2),
        lambda: (randn(2, 2, 4, 4, seed=64), randn(2, 1, 3, 3, seed=65)),
    ),
    _case(
        "convolution of signals",
        lambda x, k: F.conv1d(x, k),
        lambda: (randn(3, 2, 8, seed=66), randn(2, 2, 3, seed=67)),
    ),
    _case("maximum pooling", lambda x: F.max_pool2d(x, 2), _distinct(68)),
    _case(
        "maximum pooling",
        lambda x: F.max_pool2d(x, 2),
        lambda: (torch.ones(1, 1, 4, 4, dtype=torch.float64),),
        ties=True,
        name="maximum pooling of a constant",
    ),
    _case("adaptive pooling", lambda x: F.adaptive_max_pool2d(x, 3), _distinct(69)),
    _case("average pooling", lambda x: F.avg_pool2d(x, 2), _image(70)),
    _case("norm pooling", lambda x: F.lp_pool2d(x, 2.0, 2), _image(71)),
    _case("dilation", lambda x: F.max_pool2d(x, 3, stride=1, padding=1), _distinct(72)),
    _case("median filter", lambda x: F.unfold(x, 3).median(1).values, _distinct(73)),
    _case(
        "bilinear upsampling",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        _image(74),
    ),
    _case(
        "bicubic upsampling",
        lambda x: F.interpolate(x, size=(9, 9), mode="bicubic", align_corners=True),
        _image(75),
    ),
    _case("nearest upsampling", lambda x: F.interpolate(x, scale_factor=2), _image(76)),
    _case("padding", lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect"), _image(77)),
    _case("pixel shuffle", lambda x: F.pixel_shuffle(x, 2), _image(78, 4)),
    _case("blur by fft", _blur_by_fft, _image(79)),
    _case("power spectrum", lambda x: torch.fft.rfft2(x).abs().square(), _image(80)),
    _case(
        "low pass",
        lambda x: torch.fft.irfft(torch.fft.rfft(x)[..., :3], n=x.shape[-1]),
        lambda: (randn(3, 8, seed=81),),
    ),
    _case(
        "edge strength",
        lambda x: (
            x.diff(dim=-1)[..., :-1, :].square() + x.diff(dim=-2)[..., :-1].square() + 1e-2
        ).sqrt(),
        _image(82),
    ),
    _case("non-local means", _nonlocal_means, _image(83)),
    _case("group norm", lambda x: F.group_norm(x, 2), _image(84, 4)),
    _case("instance norm", lambda x: F.instance_norm(x), _image(85, 2)),
    _case("local response norm", lambda x: F.local_response_norm(x, 3), _image(86, 4)),
    _case("channel softmax", lambda x: x.softmax(1), _image(87, 3)),
    _case(
        "warping",
        lambda x, shift: F.grid_sample(
            x,
            F.affine_grid(
                torch.cat([torch.eye(2).to(x).expand(len(x), 2, 2), shift.unsqueeze(-1)], -1),
                list(x.shape),
                align_corners=False,
            ),
            align_corners=False,
        ),
        lambda: (randn(2, 1, 6, 6, seed=88), 0.13 + 0.1 * rand(2, 2, seed=89)),
        (0, 1),
    ),
    _case("piecewise linear", _piecewise_linear, lambda: (randn(3, 5, seed=90), randn(7, seed=91))),
    _case("moving average", _recursion, lambda: (randn(3, 6, seed=92),)),
    _case(
        "time warping",
        _dynamic_time_warping,
        lambda: (randn(2, 4, seed=93), randn(2, 5, seed=94)),
        (0, 1),
    ),
    _case("best path", _longest_path, lambda: (spread(2, 4, 5, seed=95),)),
    _case(
        "gathering", lambda x: x[..., torch.tensor([0, 2, 2, 1])], lambda: (randn(3, 4, seed=96),)
    ),
    _case(
        "expanded view",
        lambda x: x.unsqueeze(-1).expand(*x.shape, 3).tanh(),
        lambda: (randn(3, 4, seed=97),),
    ),
    _case("transposed view", lambda x: x.mT.exp(), lambda: (randn(3, 4, 2, seed=98),)),
]
