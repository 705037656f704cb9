"""Every kernel of total variation computes the reference's function and its gradient."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from legato.errors import GradientError
from legato.nn import TotalVariation
from legato.nn.kernels.tv_iterates import Coupling, TVIterates
from legato.nn.kernels.tv_reference import tv as reference

fused = pytest.importorskip("legato.nn.kernels.tv_numba").tv

Solver = Callable[..., TVIterates]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Images are cut into bands when there are more threads than images."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Case:
    """A problem of random data, drawn in float64."""

    batch: int = 1
    channels: int = 1
    spatial: tuple[int, ...] = (7, 9)
    iterations: int = 6
    isotropic: bool = False
    joint: bool = False
    weight: str = "all"
    warm: bool = True
    checkpoint: int | None = None
    scale: float = 1.0

    @property
    def coupling(self) -> Coupling:
        return Coupling(self.isotropic, self.joint)

    def tensors(self) -> dict[str, Tensor | None]:
        generator = torch.Generator().manual_seed(7)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        axes = len(self.spatial)
        image = (self.batch, self.channels, *self.spatial)
        channels = 1 if self.joint else self.channels
        shapes: dict[str, tuple[int, ...]] = {
            "scalar": (),
            "image": (self.batch,),
            "pixel": (1, 1, *self.spatial),
            "row": (1, 1, 1, *self.spatial[:-1], 1),
            "column": (self.batch, 1, 1, *(1,) * (axes - 1), self.spatial[-1]),
            "all": (self.batch, channels, 1 if self.isotropic else axes, *self.spatial),
        }
        field = (*image[:2], axes, *self.spatial)
        return {
            "image": normal(*image) * self.scale,
            "weight": (normal(*shapes[self.weight]).abs() * 0.3 + 0.05) * self.scale,
            "dual": normal(*field) * 0.1 * self.scale if self.warm else None,
            "previous": normal(*field) * 0.1 * self.scale if self.warm else None,
        }

    def run(self, tv: Solver, tensors: dict[str, Tensor | None]) -> TVIterates:
        return tv(
            tensors["image"], tensors["weight"], iterations=self.iterations,
            coupling=self.coupling, dual=tensors["dual"], previous=tensors["previous"],
            first=3 if self.warm else 0, checkpoint=self.checkpoint,
        )  # fmt: skip


def values_and_gradients(
    case: Case, tv: Solver, dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    inputs = {
        name: None if t is None else t.to(dtype).requires_grad_()
        for name, t in case.tensors().items()
    }
    outputs = case.run(tv, inputs)._asdict()
    generator = torch.Generator().manual_seed(11)
    loss = torch.zeros((), dtype=dtype)
    for value in outputs.values():
        bar = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        loss = loss + (value * bar.to(dtype)).sum()
    named = {name: t for name, t in inputs.items() if t is not None}
    gradients = torch.autograd.grad(loss, list(named.values()))
    return (
        {name: value.detach().double() for name, value in outputs.items()},
        {name: g.double() for name, g in zip(named, gradients, strict=True)},
    )


@cache
def truth(case: Case) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return values_and_gradients(case, reference, torch.float64)


def assert_close(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        size = max(1e-3, float(value.abs().max()))
        error = float((got[name] - value).abs().max()) / size
        assert error <= tolerance, f"{name} is {error:.1e} off"


CASES = {
    "plain": Case(),
    "cold start": Case(warm=False),
    "scalar weight": Case(weight="scalar"),
    "one weight per image": Case(weight="image", batch=3),
    "weight per pixel for all directions": Case(weight="pixel", batch=2, channels=2),
    "weight per row": Case(weight="row"),
    "weight per column": Case(weight="column", batch=2),
    "colour": Case(channels=3, batch=2),
    "joint colour": Case(channels=3, batch=2, joint=True),
    "joint grey": Case(joint=True),
    "isotropic": Case(isotropic=True),
    "isotropic, scalar": Case(isotropic=True, weight="scalar", warm=False),
    "isotropic colour": Case(isotropic=True, channels=3, batch=2),
    "isotropic joint colour": Case(isotropic=True, channels=3, batch=2, joint=True),
    "checkpoints": Case(checkpoint=4),
    "isotropic checkpoints": Case(checkpoint=4, isotropic=True, channels=2),
    "volume": Case(spatial=(3, 4, 5)),
    "isotropic volume": Case(spatial=(4, 3, 17), isotropic=True, channels=2),
    "joint volume": Case(spatial=(4, 3, 5), channels=2, joint=True, checkpoint=4),
    "flat volume": Case(spatial=(1, 5, 4)),
    "one row": Case(spatial=(1, 17)),
    "one column": Case(spatial=(17, 1), isotropic=True),
    "one pixel": Case(spatial=(1, 1)),
    "odd size": Case(spatial=(31, 37)),
    "isotropic odd size": Case(spatial=(37, 31), isotropic=True),
    "large batch": Case(batch=8, spatial=(3, 4)),
    "one iteration": Case(iterations=1),
    "small numbers": Case(scale=1e-3),
}
LONG = {
    "long": Case(spatial=(40, 33), iterations=100, warm=False),
    "long, isotropic": Case(spatial=(40, 33), iterations=100, isotropic=True, warm=False),
    "long volume": Case(spatial=(20, 5, 19), iterations=50, checkpoint=9, warm=False),
    "long, joint": Case(spatial=(40, 33), channels=3, joint=True, isotropic=True, iterations=50),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", [pytest.param(c, id=n) for n, c in (CASES | LONG).items()])
def test_values_and_gradients(case: Case, dtype: torch.dtype) -> None:
    values, gradients = values_and_gradients(case, fused, dtype)
    right_values, right_gradients = truth(case)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-10
    assert_close(values, right_values, tolerance)
    assert_close(gradients, right_gradients, tolerance)


def test_any_number_of_threads_gives_the_same() -> None:
    case = Case(spatial=(61, 19), iterations=30, isotropic=True)
    torch.set_num_threads(1)
    alone = values_and_gradients(case, fused, torch.float64)
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        values, gradients = values_and_gradients(case, fused, torch.float64)
        assert_close(values, alone[0], 0.0)
        assert_close(gradients, alone[1], 1e-14)


def test_from_several_threads_at_once() -> None:
    cases = [Case(spatial=(40, 20 + i), iterations=20) for i in range(4)]
    right = [truth(case) for case in cases]
    got: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}

    def work(i: int) -> None:
        got[i] = values_and_gradients(cases[i], fused, torch.float64)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (values, gradients) in enumerate(right):
        assert_close(got[i][0], values, 1e-10)
        assert_close(got[i][1], gradients, 1e-10)


@pytest.mark.parametrize("wanted", [["image"], ["weight"]], ids=str)
@pytest.mark.parametrize("isotropic", [False, True])
def test_gradients_one_at_a_time(wanted: list[str], isotropic: bool) -> None:
    case = Case(isotropic=isotropic, warm=False)

    def gradient(tv: Solver) -> Tensor:
        inputs = case.tensors()
        leaf = inputs[wanted[0]]
        assert leaf is not None
        leaf.requires_grad_()
        return torch.autograd.grad(case.run(tv, inputs).value.square().sum(), leaf)[0]

    torch.testing.assert_close(gradient(fused), gradient(reference), rtol=1e-10, atol=1e-10)


def test_non_contiguous_input() -> None:
    tensors = Case(warm=False, channels=3, spatial=(9, 12)).tensors()
    image, weight = tensors["image"], tensors["weight"]
    assert image is not None
    assert weight is not None
    strided = image.to(memory_format=torch.channels_last).transpose(2, 3).transpose(2, 3)
    skewed = weight.transpose(-1, -2).contiguous().transpose(-1, -2)
    assert not strided.is_contiguous()
    assert not skewed.is_contiguous()
    settings = {"iterations": 5, "coupling": Coupling(False, False)}
    got, right = fused(strided, skewed, **settings), fused(image, weight, **settings)
    assert torch.equal(got.value, right.value)


def test_inputs_are_left_alone() -> None:
    case = Case()
    tensors = case.tensors()
    case.run(fused, tensors)
    for name, tensor in case.tensors().items():
        assert torch.equal(tensors[name], tensor), name  # type: ignore[arg-type]


def test_the_tape_of_clipping_is_a_byte_a_pixel() -> None:
    image = torch.zeros(2, 1, 32, 32, requires_grad=True)
    value = fused(image, torch.tensor(0.1), iterations=10, coupling=Coupling(False, False)).value
    tape = value.grad_fn.saved_tensors[2]
    assert tape.dtype == torch.uint8
    assert tape.nbytes == 10 * image.numel()


def test_opaque_to_the_compiler() -> None:
    layer = TotalVariation(4, isotropic=True)
    image = Case(spatial=(8, 9)).tensors()["image"]
    assert image is not None

    def loss(y: Tensor) -> Tensor:
        return layer(y, 0.2).value.square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for function in (loss, compiled):
        y = image.clone().requires_grad_()
        function(y).backward()
        assert y.grad is not None
        torch.testing.assert_close(y.grad, _gradient(loss, image))


def _gradient(loss: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
    y = image.clone().requires_grad_()
    return torch.autograd.grad(loss(y), y)[0]


def test_operator_passes_torchs_own_checks() -> None:
    tensors = Case(warm=False).tensors()
    for isotropic, checkpoint in ((False, 0), (True, 2)):
        w = torch.full((1, 1, 1, 1, 1), 0.2, dtype=torch.float64, requires_grad=True)
        image = tensors["image"].clone().requires_grad_()  # type: ignore[union-attr]
        arguments = (image, w, None, None, 4, 0, isotropic, False, checkpoint, True)
        torch.library.opcheck(
            torch.ops.legato.tv_numba.default,
            arguments,
            test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
        )


@pytest.mark.parametrize("what", ["second derivatives", "torch.func", "forward mode"])
def test_what_the_fused_kernel_cannot_do_is_said(what: str) -> None:
    image = Case(spatial=(5, 6)).tensors()["image"]
    assert image is not None
    layer = TotalVariation(5)

    def loss(y: Tensor) -> Tensor:
        return layer(y, 0.2).value.square().sum()

    def derivative() -> None:
        if what == "second derivatives":
            y = image.clone().requires_grad_()
            (first,) = torch.autograd.grad(loss(y), y, create_graph=True)
            torch.autograd.grad(first.square().sum(), y)
        elif what == "torch.func":
            torch.func.grad(loss)(image)
        else:
            torch.func.jvp(loss, (image,), (image,))

    with pytest.raises(GradientError, match='kernel="reference"'):
        derivative()


def test_second_derivatives_by_the_reference() -> None:
    image = Case(spatial=(4, 5)).tensors()["image"]
    assert image is not None
    layer = TotalVariation(5, kernel="reference")
    y = image.clone().requires_grad_()
    w = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda y, w: layer(y, w).value.square().sum(), (y, w))
