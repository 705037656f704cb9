"""Every kernel of total variation computes the reference's function and its gradient.

How and where they run: tests/kernel_harness.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import pytest
import torch
from torch import Tensor

import kernel_harness as harness
from kernel_harness import (
    KERNELS,
    Kernel,
    Results,
    Solver,
    conversions_allowed,
    in_both_precisions,
    interpreter_needed,
    load,
    not_interpreted,
    numba_only,
    passed_by_the_interpreter,
    torch_threads,
    values_and_gradients,
)
from legato.errors import GradientError
from legato.nn import TotalVariation
from legato.nn.total_variation.model import Coupling, TVIterates
from legato.nn.total_variation.reference import tv as reference

pytestmark = conversions_allowed
assert_close = partial(harness.assert_close, size=1e-3)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return load("tv", request.param)


@pytest.fixture
def numba() -> Kernel:
    return load("tv", "numba")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with torch_threads(2):
        yield


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


@cache
def truth(case: Case) -> Results:
    return values_and_gradients(case, reference, torch.float64)


SMALL = {
    "one tile": Case(spatial=(5, 6), iterations=3),
    "cold start, several tiles": Case(warm=False, spatial=(3, 37), iterations=2),
    "scalar weight of a batch": Case(weight="scalar", batch=2, spatial=(2, 3), iterations=2),
    "weight per pixel of colours": Case(weight="pixel", channels=2, spatial=(3, 2), iterations=2),
    "weight per row of isotropic": Case(weight="row", isotropic=True, spatial=(3, 4), iterations=2),
    "colours": Case(channels=2, batch=2, spatial=(3, 4), iterations=2),
    "joint colours": Case(channels=3, joint=True, spatial=(3, 4), iterations=3),
    "isotropic joint colours": Case(
        channels=3, batch=2, isotropic=True, joint=True, spatial=(3, 4), iterations=2
    ),
    "isotropic with checkpoints": Case(isotropic=True, spatial=(3, 4), iterations=3, checkpoint=2),
    "cold start with checkpoints": Case(warm=False, spatial=(3, 4), iterations=3, checkpoint=2),
    "volume of joint colours": Case(channels=2, joint=True, spatial=(3, 2, 4), iterations=2),
    "small volume": Case(spatial=(2, 3, 2), iterations=2),
    "short row": Case(spatial=(1, 7), iterations=2),
    "short isotropic column": Case(spatial=(7, 1), isotropic=True, iterations=2),
    "single step": Case(iterations=1, spatial=(3, 4), isotropic=True),
}
LARGE = {
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


SINGLE = ("one tile", "isotropic with checkpoints", "joint colours")
"""What the interpreter runs in float32 too; float64 finds more."""
CASES = in_both_precisions(SMALL, LARGE | LONG, SINGLE)


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_values_and_gradients(kernel: Kernel, case: Case, dtype: torch.dtype) -> None:
    values, gradients = values_and_gradients(case, kernel.solve, dtype, kernel.device)
    right_values, right_gradients = truth(case)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-10
    assert_close(values, right_values, tolerance)
    assert_close(gradients, right_gradients, tolerance)


@not_interpreted
@pytest.mark.parametrize("output", TVIterates._fields)
def test_cotangent_of_one_output(kernel: Kernel, output: str) -> None:
    case = Case(isotropic=True)

    def gradients(tv: Solver, device: str) -> list[Tensor]:
        inputs = {
            name: None if t is None else t.to(device).requires_grad_()
            for name, t in case.tensors().items()
        }
        loss = getattr(case.run(tv, inputs), output).square().sum()
        wanted = [t for t in inputs.values() if t is not None]
        return [g.cpu() for g in torch.autograd.grad(loss, wanted)]

    for got, right in zip(
        gradients(kernel.solve, kernel.device), gradients(reference, "cpu"), strict=True
    ):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)


@numba_only
def test_any_number_of_threads_gives_the_same(numba: Kernel) -> None:
    case = Case(spatial=(61, 19), iterations=30, isotropic=True)
    torch.set_num_threads(1)
    alone = values_and_gradients(case, numba.solve, torch.float64)
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        values, gradients = values_and_gradients(case, numba.solve, torch.float64)
        assert_close(values, alone[0], 0.0)
        assert_close(gradients, alone[1], 1e-14)


@not_interpreted
def test_from_several_threads_at_once(kernel: Kernel) -> None:
    cases = [Case(spatial=(40, 20 + i), iterations=20) for i in range(4)]
    right = [truth(case) for case in cases]
    got: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}

    def work(i: int) -> None:
        got[i] = values_and_gradients(cases[i], kernel.solve, torch.float64, kernel.device)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (values, gradients) in enumerate(right):
        assert_close(got[i][0], values, 1e-10)
        assert_close(got[i][1], gradients, 1e-10)


@pytest.mark.parametrize("wanted", ["image", "weight"])
@pytest.mark.parametrize("isotropic", [False, True])
def test_gradients_one_at_a_time(kernel: Kernel, wanted: str, isotropic: bool) -> None:
    case = Case(isotropic=isotropic, warm=False, spatial=(3, 4), iterations=3)

    def gradient(tv: Solver, device: str) -> Tensor:
        inputs = {n: None if t is None else t.to(device) for n, t in case.tensors().items()}
        leaf = inputs[wanted]
        assert leaf is not None
        leaf.requires_grad_()
        return torch.autograd.grad(case.run(tv, inputs).x.square().sum(), leaf)[0].cpu()

    found, right = gradient(kernel.solve, kernel.device), gradient(reference, "cpu")
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("isotropic", [False, True])
def test_a_weight_of_zero_changes_nothing_and_has_a_gradient(
    kernel: Kernel, isotropic: bool
) -> None:
    """Where λ = 0 the projection's radius vanishes, but not its derivative to the right."""
    image = Case(spatial=(3, 4)).tensors()["image"]
    assert image is not None
    image = image.to(kernel.device)

    def loss(w: Tensor) -> Tensor:
        u = kernel.solve(image, w, iterations=2, coupling=Coupling(isotropic, False)).x
        if not w.any():
            torch.testing.assert_close(u, image)
        return u.pow(3).sum()

    w = image.new_zeros(()).requires_grad_()
    (found,) = torch.autograd.grad(loss(w), w)
    right = (loss(w.detach() + 1e-7) - loss(w.detach())) / 1e-7
    assert right.abs() > 0.1
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


def test_non_contiguous_input(kernel: Kernel) -> None:
    tensors = Case(warm=False, channels=2, spatial=(3, 4)).tensors()
    image, weight = tensors["image"], tensors["weight"]
    assert image is not None
    assert weight is not None
    image, weight = image.to(kernel.device), weight.to(kernel.device)
    strided = image.to(memory_format=torch.channels_last)
    skewed = weight.transpose(-1, -2).contiguous().transpose(-1, -2)
    assert not strided.is_contiguous()
    assert not skewed.is_contiguous()
    settings = {"iterations": 3, "coupling": Coupling(False, False)}
    got, right = kernel.solve(strided, skewed, **settings), kernel.solve(image, weight, **settings)
    assert torch.equal(got.x, right.x)


def test_inputs_are_left_alone(kernel: Kernel) -> None:
    case = Case(spatial=(3, 4), iterations=4)
    tensors = {n: t.to(kernel.device) for n, t in case.tensors().items() if t is not None}
    case.run(kernel.solve, dict(tensors))
    for name, tensor in case.tensors().items():
        assert torch.equal(tensors[name].cpu(), tensor), name  # type: ignore[arg-type]


def test_the_tape_of_clipping_is_a_byte_a_pixel(kernel: Kernel) -> None:
    image = torch.zeros(2, 1, 4, 32, requires_grad=True, device=kernel.device)
    w = torch.tensor(0.1, device=kernel.device)
    value = kernel.solve(image, w, iterations=3, coupling=Coupling(False, False)).x
    tape = value.grad_fn.saved_tensors[4]
    assert tape.dtype == torch.uint8
    assert tape.nbytes == 3 * image.numel()


@not_interpreted
def test_opaque_to_the_compiler(kernel: Kernel) -> None:
    layer = TotalVariation(4, isotropic=True, kernel=kernel.name)
    image = Case(spatial=(8, 9)).tensors()["image"]
    assert image is not None
    image = image.to(kernel.device)

    def loss(y: Tensor) -> Tensor:
        return layer(y, 0.2).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for function in (loss, compiled):
        y = image.clone().requires_grad_()
        function(y).backward()
        assert y.grad is not None
        torch.testing.assert_close(y.grad, _gradient(loss, image))


def _gradient(loss: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
    y = image.clone().requires_grad_()
    return torch.autograd.grad(loss(y), y)[0]


def test_operator_passes_torchs_own_checks(kernel: Kernel) -> None:
    image = Case(spatial=(3, 4)).tensors()["image"]
    assert image is not None
    for isotropic, checkpoint in ((False, 0), (True, 2)):
        w = torch.full((1, 1, 1, 1, 1), 0.2, dtype=torch.float64, device=kernel.device)
        leaves = (image.to(kernel.device).requires_grad_(), w.requires_grad_())
        absent = [w.new_empty(0), w.new_empty(0)]
        arguments = ([*leaves, *absent], [3, 0, int(isotropic), 0, checkpoint], [], True)
        torch.library.opcheck(
            getattr(torch.ops.legato, f"tv_{kernel.name}").default,
            arguments,
            test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
        )


@pytest.mark.parametrize("what", ["second derivatives", "torch.func", "forward mode"])
def test_what_the_fused_kernel_cannot_do_is_said(kernel: Kernel, what: str) -> None:
    image = Case(spatial=(3, 4)).tensors()["image"]
    assert image is not None
    image = image.to(kernel.device)
    layer = TotalVariation(2, kernel=kernel.name)

    def loss(y: Tensor) -> Tensor:
        return layer(y, 0.2).square().sum()

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


@numba_only
def test_second_derivatives_by_the_reference() -> None:
    image = Case(spatial=(4, 5)).tensors()["image"]
    assert image is not None
    layer = TotalVariation(5, kernel="reference")
    y = image.clone().requires_grad_()
    w = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda y, w: layer(y, w).square().sum(), (y, w))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("isotropic", [False, True])
def test_bad_cotangents_stay_bad(kernel: Kernel, isotropic: bool, bad: float) -> None:
    case = Case(spatial=(3, 4), iterations=2, isotropic=isotropic)
    tensors = {n: None if t is None else t.to(kernel.device) for n, t in case.tensors().items()}
    image = tensors["image"]
    assert image is not None
    value = case.run(kernel.solve, tensors | {"image": image.requires_grad_()}).y
    (gradient,) = torch.autograd.grad(value, image, torch.full_like(value, bad))
    assert not torch.isfinite(gradient).all()


@interpreter_needed
def test_triton_by_its_interpreter() -> None:
    assert passed_by_the_interpreter(__file__) >= len(SMALL) + len(SINGLE)
