"""Blurs, masks, projections, wavelets and others' operators, against SciPy and closed forms."""

from __future__ import annotations

import itertools
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.ndimage
import scipy.sparse
import scipy.sparse.linalg
import torch

import legato as lg
from draws import rand, randn
from legato.errors import InputError, MissingExtraError
from legato.operators import from_function, from_pylops, from_scipy, nonnegative
from legato.testing import check_operator

# --- blurs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boundary", "mode"), [("circular", "wrap"), ("zero", "constant"), ("mirror", "reflect")]
)
@pytest.mark.parametrize("size", [(3, 5), (4, 2), (1, 7)])
def test_a_blur_is_scipys_convolution(boundary, mode, size):
    x, kernel = randn(9, 8, seed=1), randn(*size, seed=2)
    expected = scipy.ndimage.convolve(x.numpy(), kernel.numpy(), mode=mode)
    np.testing.assert_allclose(lg.Blur(kernel, boundary)(x).numpy(), expected, atol=1e-12)
    point = torch.zeros(9, 8, dtype=torch.float64)
    point[4, 4] = 1.0
    spread = lg.Blur(kernel, boundary)(point)
    top, left = 4 - size[0] // 2, 4 - size[1] // 2
    torch.testing.assert_close(spread[top : top + size[0], left : left + size[1]], kernel)


def test_a_kernel_can_be_learned():
    x, kernel = randn(2, 8, 8, seed=3), randn(3, 3, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda k: lg.Blur(k, "mirror")(x), (kernel,))


def test_deblurring_finds_the_minimiser():
    """The normal equations of ½‖Kx − y‖² + ε/2‖x‖², solved by Fourier division."""
    kernel = torch.tensor([[0.05, 0.1, 0.05], [0.1, 0.4, 0.1], [0.05, 0.1, 0.05]]).double()
    y = randn(8, 8, seed=5)
    energy = lg.LeastSquares(lg.Blur(kernel), y) + lg.SquaredNorm(0.05)
    found = lg.solve(energy, stop=lg.Stop(5000, tol=1e-12)).x
    point = torch.zeros(8, 8, dtype=torch.float64)
    point[0, 0] = 1.0
    symbol = torch.fft.fft2(lg.Blur(kernel)(point))
    expected = torch.fft.ifft2(symbol.conj() * torch.fft.fft2(y) / (symbol.abs() ** 2 + 0.05))
    torch.testing.assert_close(found, expected.real, atol=1e-8, rtol=0)


# --- what is left out -----------------------------------------------------------------------------


def test_downsampling_takes_every_other():
    x = randn(2, 6, 8, seed=6)
    torch.testing.assert_close(lg.Downsample(2)(x), x[:, ::2, ::2])
    back = lg.Downsample(2).adjoint(lg.Downsample(2)(x))
    torch.testing.assert_close(back[:, ::2, ::2], x[:, ::2, ::2])
    assert float(back.abs().sum()) == pytest.approx(float(x[:, ::2, ::2].abs().sum()))


def test_a_mask_hides_nan_from_a_fit():
    y = torch.tensor([1.0, torch.nan, 3.0]).double()
    seen = ~y.isnan()
    energy = lg.LeastSquares(lg.Mask(seen), torch.where(seen, y, 0.0)) + lg.SquaredNorm(1e-3)
    x = lg.solve(energy, stop=lg.Stop(500, tol=1e-12)).x
    torch.testing.assert_close(x, torch.tensor([1.0, 0.0, 3.0]).double() / 1.001)
    assert lg.Mask(seen)(y).tolist() == [1.0, 0.0, 3.0]


# --- second order ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 6), (2, 3), (1, 5), (5, 1), (1, 1)])
def test_the_symmetrised_gradient_is_its_definition(shape):
    """Entry by entry: no derivative where a neighbour, or the component at it, is missing."""
    w = randn(2, *shape, seed=7)

    def component(k, at):
        inside = all(
            0 <= i < n - (axis == k) for axis, (i, n) in enumerate(zip(at, shape, strict=True))
        )
        return w[k][at] if inside else None

    def derivative(along, k, at):
        behind = tuple(i - (axis == along) for axis, i in enumerate(at))
        ends = component(k, at), component(k, behind)
        return 0.0 if None in ends else float(ends[0] - ends[1])

    K = lg.SymmetrisedGradient()(w)
    for at in itertools.product(*map(range, shape)):
        mixed = (derivative(0, 1, at) + derivative(1, 0, at)) / math.sqrt(2)
        true = [derivative(0, 0, at), derivative(1, 1, at), mixed]
        assert K[(slice(None), *at)].tolist() == pytest.approx(true, abs=1e-14)


def test_the_absolute_symmetrised_gradient_has_the_moduli_of_its_matrix():
    K, basis = lg.SymmetrisedGradient(), torch.eye(24).double().reshape(24, 2, 4, 3)
    for one, other in ((K, K.absolute()), (K.T, K.absolute().T)):
        like = basis if one is K else torch.eye(36).double().reshape(36, 3, 4, 3)
        torch.testing.assert_close(one(like).abs(), other(like))


def test_second_differences_vanish_on_planes_up_to_their_edges():
    i, j = torch.meshgrid(torch.arange(6.0), torch.arange(7.0), indexing="ij")
    assert float(lg.SecondDifferences()(2 * i - 3 * j + 1).abs().max()) == 0.0
    curved = lg.SecondDifferences()(i * i)
    torch.testing.assert_close(curved[0, 1:-1], torch.full((4, 7), 2.0))
    assert float(curved[0, [0, -1]].abs().max()) == 0.0
    assert float(curved[1:].abs().max()) == 0.0


# --- projections ----------------------------------------------------------------------------------


def test_projections_of_a_bump_are_its_integrals():
    """A Gaussian's line integrals are Gaussians, whatever the angle."""
    n, sigma, centre = 64, 4.0, (5.0, -3.0)
    place = torch.arange(n, dtype=torch.float64) - (n - 1) / 2
    r2 = (place[:, None] - centre[0]) ** 2 + (place - centre[1]) ** 2
    x = torch.exp(-r2 / (2 * sigma**2))
    angles = torch.linspace(0, torch.pi, 13)[:-1].tolist()
    K = lg.Radon(angles, n)
    sinogram = K(x)
    s = torch.arange(sinogram.shape[-1], dtype=torch.float64) - (sinogram.shape[-1] - 1) / 2
    for row, angle in zip(sinogram, angles, strict=True):
        middle = centre[0] * math.cos(angle) + centre[1] * math.sin(angle)
        expected = sigma * math.sqrt(2 * math.pi) * torch.exp(-((s - middle) ** 2) / 2 / sigma**2)
        # Linear interpolation between pixels lowers a bump of this width by about 1/(4σ²).
        assert float((row - expected).abs().max()) < 0.02 * float(expected.max())


def test_projections_in_forward_and_reverse_mode():
    K = lg.Radon([0.3, 1.1], 5)
    x = randn(5, 5, seed=8).requires_grad_()
    assert torch.autograd.gradcheck(K, (x,), check_forward_ad=True)
    batch = torch.stack([x.detach(), 2 * x.detach()])
    torch.testing.assert_close(torch.func.vmap(K)(batch), K(batch))


@pytest.mark.parametrize(
    ("angles", "size", "detectors"),
    [([0.3], 5, None), ([0.3, 1.9], 7, 5), ([0.1, 0.2], 20, None), ([0.7], 30, 3), ([0.0], 6, 2),
     (torch.linspace(0, torch.pi, 13)[:-1], 24, None)],
)  # fmt: skip
def test_norms_of_projections_are_proven_bounds(angles, size, detectors, monkeypatch):
    """Against the singular values of the matrix; nothing is estimated by chance."""
    monkeypatch.setattr(nonnegative, "lanczos_norm", lambda *_: pytest.fail("by chance"))
    K = lg.Radon(angles, size, detectors)
    true = float(torch.linalg.matrix_norm(K.matrix(torch.float64), 2))
    assert true <= float(K.norm()) <= 1.01 * true


def test_a_norm_that_power_iteration_does_not_find_is_left_to_lanczos():
    entries = torch.ones(2000, dtype=torch.float64)
    entries[7] = 1.02
    assert 1.02 <= float(nonnegative.perron_norm(lg.Diagonal(entries), entries)) <= 1.02 * 1.0101
    assert float(nonnegative.perron_norm(lg.Diagonal(0 * entries), entries)) == 0
    bad = lg.Diagonal(torch.nan * entries)
    assert not math.isfinite(float(nonnegative.perron_norm(bad, entries)))


# --- wavelets -------------------------------------------------------------------------------------


def test_wavelets_are_orthonormal():
    x = randn(3, 8, 16, seed=9)
    K = lg.Wavelet(3)
    torch.testing.assert_close(K.adjoint(K(x)), x)
    torch.testing.assert_close(K(K.adjoint(x)), x)
    constant = K(torch.ones(8, 8).double())
    assert float(constant[0, 0]) == pytest.approx(8.0)
    assert float(constant.abs().sum()) == pytest.approx(8.0)


def test_other_wavelets_come_from_pywavelets(monkeypatch):
    """Daubechies' wavelet of two vanishing moments, in closed form, as PyWavelets gives it."""
    root = math.sqrt(3)
    taps = [(1 - root), (3 - root), (3 + root), (1 + root)]
    made = SimpleNamespace(orthogonal=True, dec_lo=[h / (4 * math.sqrt(2)) for h in taps])
    monkeypatch.setitem(sys.modules, "pywt", SimpleNamespace(Wavelet=lambda name: made))
    K = lg.Wavelet(2, "db2", (-1,))
    check_operator(K, torch.zeros(3, 16).double())
    torch.testing.assert_close(K.adjoint(K(randn(16, seed=1))), randn(16, seed=1))
    line = torch.arange(16.0).double()
    details = lg.Wavelet(1, "db2", (-1,))(line)[8:]
    assert float(details[:-1].abs().max()) < 1e-12  # up to where the line jumps back
    made.orthogonal = False
    with pytest.raises(InputError, match="not orthogonal"):
        lg.Wavelet(1, "bior2.2")
    monkeypatch.setitem(sys.modules, "pywt", None)
    with pytest.raises(MissingExtraError, match="pip install PyWavelets"):
        lg.Wavelet(1, "db2")


# --- operators of others --------------------------------------------------------------------------


def test_a_function_has_its_adjoint_by_autograd():
    A = randn(3, 4, seed=10)
    K = from_function(lambda x: A @ x, (4,), torch.float64)
    y = randn(3, seed=11)
    torch.testing.assert_close(K.adjoint(y), A.T @ y)
    b = randn(3, seed=12)
    energy = lg.LeastSquares(K, b) + lg.L1(0.1)
    expected = lg.solve(lg.LeastSquares(A, b) + lg.L1(0.1), stop=lg.Stop(5000, tol=1e-12)).x
    found = lg.solve(energy, stop=lg.Stop(5000, tol=1e-12)).x
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)


def test_a_function_s_own_parameters_are_learned():
    x, y = randn(4, seed=13), randn(4, seed=14)

    def both(w):
        K = from_function(lambda z: w * z.cumsum(0), (4,), torch.float64)
        return K(x), K.adjoint(y)

    assert torch.autograd.gradcheck(both, (rand(4, seed=15).requires_grad_(),))


def test_operators_of_scipy():
    A = scipy.sparse.random(5, 7, 0.5, random_state=0).tocsr()
    K = from_scipy(A)
    x = randn(2, 3, 7, seed=16)
    torch.testing.assert_close(K(x), x @ torch.from_numpy(A.toarray()).T)
    leaf = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(K, (leaf,), check_forward_ad=True)
    assert K(x.float()).dtype == torch.float32
    report = check_operator(K, x[0, 0])
    assert report["norm over true norm"] <= 1.01


class Flip:
    """As PyLops writes an operator: on vectors, with the sizes of what they stand for."""

    shape, dims, dimsd, dtype = (12, 12), (3, 4), (3, 4), np.dtype("float64")

    def matvec(self, x):
        return 2 * np.asarray(x).reshape(3, 4)[::-1].ravel()

    def rmatvec(self, y):
        return self.matvec(y)


class WrongFlip(Flip):
    def rmatvec(self, y):
        return 3 * np.asarray(y)


def test_operators_of_pylops():
    K = from_pylops(Flip())
    x = randn(2, 3, 4, seed=17)
    torch.testing.assert_close(K(x), 2 * x.flip(-2))
    check_operator(K, x)


# --- what is refused ------------------------------------------------------------------------------

IMAGE = torch.ones(4, 4)


def from_function_with_transpose(matrix):
    """As if the adjoint were the transpose: a conjugate is missing."""
    return from_scipy(
        scipy.sparse.linalg.LinearOperator(
            matrix.shape,
            matvec=lambda x: matrix @ x,
            rmatvec=lambda y: matrix.T @ y,
            dtype=complex,
        )
    )


REFUSED = {
    "a mask of another size": (lambda: lg.Mask(IMAGE > 0)(torch.ones(4, 5)), "last axes of x"),
    "a mask of weights": (lambda: lg.Mask(0.5 * IMAGE), "Diagonal"),
    "a size that does not divide": (lambda: lg.Downsample(3)(IMAGE), "multiples of 3"),
    "a factor of 0": (lambda: lg.Downsample(0), "at least 1"),
    "a kernel larger than the image": (lambda: lg.Blur(torch.ones(5, 5))(IMAGE), "as large as"),
    "a kernel with channels": (lambda: lg.Blur(torch.ones(1, 1, 3, 3)), "one to three axes"),
    "a boundary nobody knows": (lambda: lg.Blur(IMAGE, "edge"), "boundary must be"),
    "real frequencies": (
        lambda: lg.Fourier().adjoint(torch.ones(4, 4)),
        "takes complex frequencies",
    ),
    "no angles": (lambda: lg.Radon([], 4), "at least one angle"),
    "an angle twice": (lambda: lg.Radon([0.1, 0.1 + math.pi], 4), "Two angles"),
    "angles in degrees": (lambda: lg.Radon(torch.arange(0, 180, 10), 4), "torch.deg2rad"),
    "a kernel of nothing": (lambda: lg.Blur(torch.ones(0, 3)), "at least one entry"),
    "an angle that is NaN": (lambda: lg.Radon([math.nan], 4), "NaN"),
    "an image of another size": (lambda: lg.Radon([0.0], 5)(IMAGE), "of shape"),
    "a sinogram of another size": (lambda: lg.Radon([0.0], 4).adjoint(IMAGE), "one row an angle"),
    "an image that cannot be halved": (lambda: lg.Wavelet(3)(IMAGE), "multiples of 8"),
    "a field of three": (lambda: lg.SymmetrisedGradient()(torch.ones(3, 4, 4)), "2 components"),
    "a function that is not linear": (lambda: from_function(torch.relu, (4,)), "not linear"),
    "a function with an offset": (lambda: from_function(lambda x: x + 1, (4,)), "not linear"),
    "a wrong adjoint": (lambda: from_pylops(WrongFlip()), "adjoint of the operator is wrong"),
    "no operator": (lambda: from_pylops(3), "no shape, matvec, rmatvec"),
    "a wrong complex adjoint": (
        lambda: from_function_with_transpose(1j * np.eye(3)),
        "adjoint of the operator is wrong",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_in_words(name):
    make, words = REFUSED[name]
    with pytest.raises(InputError, match=words):
        make()


class Twice(lg.Operator):
    """An operator as somebody would write it first: its norm is a number."""

    def __call__(self, x):
        return 2 * x

    def adjoint(self, y):
        return 2 * y

    def norm(self, like=None):
        return 2.0


@pytest.mark.parametrize("algorithm", [None, lg.ADMM()], ids=["default", "ADMM"])
def test_a_norm_may_be_a_number(algorithm):
    y = randn(5, seed=1)
    for energy, expected in (
        (lg.LeastSquares(Twice(), y) + lg.L1(0.1), lg.L1(0.1 / 4).prox(y / 2)),
        (lg.SquaredDistance(y) + lg.L1(0.1) @ Twice(), lg.L1(0.2).prox(y)),
    ):
        x = lg.solve(energy, algorithm, stop=lg.Stop(2000, tol=1e-10)).x
        torch.testing.assert_close(x, expected, atol=1e-7, rtol=0)
    assert Twice().norm(y.float()).dtype == torch.float32
