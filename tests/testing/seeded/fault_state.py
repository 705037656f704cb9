"""Layers that remember: caches, warm starts, buffers, tapes, and tensors that are not theirs."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

from makers import randn
from testing.seeded.case import Fault, apply, dot, outer, register
from testing.seeded.case import well_conditioned as well

STATE: list[Fault] = []


class _SolveByInverse(Function):
    """x = A⁻¹b, given A⁻¹; right as long as the inverse is that of A."""

    @staticmethod
    def forward(ctx, A, b, inverse):
        x = apply(inverse, b)
        ctx.save_for_backward(inverse, x)
        return x

    @staticmethod
    def backward(ctx, g):
        inverse, x = ctx.saved_tensors
        v = apply(inverse.mT, g)
        return -outer(v, x), v, None


def _system():
    return well(4, 4, seed=1), randn(3, 4, seed=2)


@register(
    STATE,
    "stale cache, shape",
    "The inverse of a matrix serves every later matrix of that shape.",
    _system,
    batch=(1,),
)
class SystemCachedByShape(nn.Module):
    """x = A⁻¹b."""

    def __init__(self):
        super().__init__()
        self.inverses = {}

    def forward(self, A, b):
        if A.shape not in self.inverses:
            self.inverses[A.shape] = torch.linalg.inv(A.detach())
        return _SolveByInverse.apply(A, b, self.inverses[A.shape])


@register(
    STATE,
    "stale cache, id",
    "The inverse is kept by the matrix's id, which an update in place or a new tensor shares.",
    _system,
    batch=(1,),
)
class SystemCachedById(nn.Module):
    """x = A⁻¹b."""

    def __init__(self):
        super().__init__()
        self.inverses = {}

    def forward(self, A, b):
        if id(A) not in self.inverses:
            self.inverses[id(A)] = torch.linalg.inv(A.detach())
        return _SolveByInverse.apply(A, b, self.inverses[id(A)])


class _Filter(Function):
    """y = k ∗ x, periodic, given the spectrum of k."""

    @staticmethod
    def forward(ctx, x, kernel, spectrum):
        transformed = torch.fft.fft(x)
        ctx.save_for_backward(transformed, spectrum)
        return torch.fft.ifft(transformed * spectrum).real

    @staticmethod
    def backward(ctx, g):
        transformed, spectrum = ctx.saved_tensors
        g = torch.fft.fft(g)
        for_kernel = torch.fft.ifft(transformed.conj() * g).real
        return torch.fft.ifft(spectrum.conj() * g).real, for_kernel.sum(0), None


@register(
    STATE,
    "stale cache, data_ptr",
    "The spectrum is kept by the kernel's address in memory, whatever is written there later.",
    lambda: (randn(3, 8, seed=1), randn(8, seed=2)),
)
class CachedFilter(nn.Module):
    """A periodic convolution by the fast Fourier transform."""

    def __init__(self):
        super().__init__()
        self.spectra = {}

    def forward(self, x, kernel):
        key = kernel.data_ptr(), kernel.shape, kernel.dtype
        if key not in self.spectra:
            self.spectra[key] = torch.fft.fft(kernel.detach())
        return _Filter.apply(x, kernel, self.spectra[key])


@register(
    STATE,
    "stale cache, .data",
    "The inverse is kept by the parameter's version, which a write through .data leaves as it is.",
    lambda: (randn(3, 4, seed=2),),
    parameters=("matrix",),
)
class SystemCachedByVersion(nn.Module):
    """x = A⁻¹b for a learned A."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(well(4, 4, seed=1))
        self.version, self.inverse = None, None

    def forward(self, b):
        if self.version != self.matrix._version:
            self.version = self.matrix._version
            self.inverse = torch.linalg.inv(self.matrix.detach())
        return _SolveByInverse.apply(self.matrix, b, self.inverse)


@register(
    STATE,
    "no_grad before",
    "Whether the gain is differentiated is settled by the first call, which may have no_grad.",
    lambda: (randn(3, 5, seed=1), randn(5, seed=2)),
)
class LazyGain(nn.Module):
    """y = tanh(x · softplus(w)), with a gain that is set up at the first call."""

    def __init__(self):
        super().__init__()
        self.gain = None

    def forward(self, x, w):
        if self.gain is None:
            self.gain = F.softplus if torch.is_grad_enabled() else torch.no_grad()(F.softplus)
        return torch.tanh(x * self.gain(w))


@register(
    STATE,
    "warm start",
    "The iteration starts from the last answer, so the same question gets another answer.",
    lambda: (randn(3, 5, seed=1),),
)
class WarmStartedLasso(nn.Module):
    """10 steps of ISTA for argmin ½‖Dz − y‖² + 0.1‖z‖₁."""

    def __init__(self):
        super().__init__()
        self.D = randn(5, 8, seed=7) / 5**0.5
        self.last = None

    def forward(self, y):
        D = self.D.to(y)
        step = 1 / torch.linalg.matrix_norm(D, 2) ** 2
        z = y.new_zeros(*y.shape[:-1], 8)
        if self.last is not None and self.last.shape == z.shape:
            z = self.last.to(y)
        for _ in range(10):
            z = F.softshrink(z - step * (z @ D.T - y) @ D, float(0.1 * step))
        self.last = z.detach()
        return z


class _Softsign(Function):
    """y = x/(1 + |x|), written into a buffer."""

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.save_for_backward(x)
        torch.div(x, 1 + x.abs(), out=buffer)
        return buffer.detach()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 + x.abs()).square(), None


@register(
    STATE,
    "buffer reused",
    "Every call writes into the tensor that the last call of that shape returned.",
    lambda: (randn(3, 5, seed=1),),
)
class BufferedSoftsign(nn.Module):
    """y = x/(1 + |x|)."""

    def __init__(self):
        super().__init__()
        self.buffers = {}

    def forward(self, x):
        buffer = self.buffers.setdefault((x.shape, x.dtype), torch.empty_like(x).detach())
        return _Softsign.apply(x, buffer)


@register(
    STATE,
    "input changed",
    "The largest entry is subtracted in place, from the caller's tensor.",
    lambda: (randn(3, 5, seed=1),),
)
class StableSoftmax(Function):
    """softmax with the largest exponent subtracted, by numpy."""

    @staticmethod
    def forward(ctx, x):
        scores = x.detach().numpy()
        scores -= scores.max(-1, keepdims=True)
        p = torch.from_numpy(scores).exp()
        p = p / p.sum(-1, keepdim=True)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return p * (g - dot(p, g))


@register(
    STATE,
    "strides ignored",
    "Memory is read in row-major order, whatever the strides of the input.",
    lambda: (randn(3, 5, seed=1),),
)
class RunningMaximum(Function):
    """The cumulative maximum along the last axis, as a kernel would read it."""

    @staticmethod
    def forward(ctx, x):
        rows = x.detach().as_strided(x.shape, torch.empty(x.shape, device="meta").stride())
        values, index = rows.cummax(-1)
        ctx.save_for_backward(index)
        return values

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter_add(-1, index, g)


@register(
    STATE,
    "second backward",
    "The backward pass eats its tape: a second pass through the same graph finds it empty.",
    lambda: (randn(3, 5, seed=1),),
)
class TapedFlow(Function):
    """Six steps x ← x − ½ sin x with a tape of slopes."""

    @staticmethod
    def forward(ctx, x):
        ctx.tape = []
        for _ in range(6):
            ctx.tape.append(1 - 0.5 * x.cos())
            x = x - 0.5 * x.sin()
        return x

    @staticmethod
    def backward(ctx, g):
        while ctx.tape:
            g = g * ctx.tape.pop()
        return g


@register(
    STATE,
    "double backward",
    "The first gradient is right; differentiated again, it takes the output for a constant.",
    lambda: (randn(3, 5, seed=1),),
)
class UnitVector(Function):
    """y = x/‖x‖."""

    @staticmethod
    def forward(ctx, x):
        ctx.norm = x.norm(dim=-1, keepdim=True)
        ctx.y = x / ctx.norm
        return ctx.y.clone()

    @staticmethod
    def backward(ctx, g):
        return (g - ctx.y * dot(ctx.y, g)) / ctx.norm
