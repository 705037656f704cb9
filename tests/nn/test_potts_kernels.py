"""Every Potts kernel computes the reference's function and its gradient.

How and where they run: tests/kernel_harness.py. FULL_MATRIX=1 takes the interpreter half an hour.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_harness import (
    KERNELS,
    SLOW,
    Kernel,
    Results,
    Solver,
    assert_close,
    conversions_allowed,
    in_both_precisions,
    interpreter_needed,
    leaves,
    load,
    not_interpreted,
    numba_only,
    passed_by_the_interpreter,
    torch_threads,
    triton_only,
    values_and_gradients,
)
from legato.errors import GradientError
from legato.nn.neighbourhood import Neighbours, offsets
from legato.nn.potts.model import PottsIterates, PottsKernel, PottsSettings
from legato.nn.potts.reference import potts as reference

pytestmark = conversions_allowed


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return load("potts", request.param)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with torch_threads(2):
        yield


@dataclass(frozen=True)
class Case:
    """A Potts problem of random data, drawn in float64."""

    batch: int = 1
    labels: int = 3
    spatial: tuple[int, ...] = (7, 9)
    iterations: int = 6
    epsilon: float = 0.0
    neighbours: Neighbours = 4
    weights: str = "pixel"
    average: bool = False
    checkpoint: int | None = None
    warm: bool = True
    scale: float = 1.0
    weight_scale: float = 1.0

    def tensors(self) -> dict[str, Tensor | None]:
        generator = torch.Generator().manual_seed(7)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        axes = len(self.spatial)
        edges = len(offsets(axes, self.neighbours))
        shapes = {
            "scalar": (),
            "pixel": (self.batch, 1, edges, *self.spatial),
            "shared": (1, 1, edges, *self.spatial),
            "label": (1, self.labels, 1, *(1,) * axes),
            "label_row": (self.batch, self.labels, edges, self.spatial[0], *(1,) * (axes - 1)),
            "all": (self.batch, self.labels, edges, *self.spatial),
        }
        weights = None
        if self.weights != "none":
            weights = (normal(*shapes[self.weights]).abs() * 0.5 + 0.1) * self.weight_scale
        step = torch.tensor(0.3 / self.weight_scale, dtype=torch.float64)
        image = (self.batch, self.labels, *self.spatial)
        return {
            "cost": normal(*image) * self.scale,
            "weights": weights,
            "tau": step,
            "sigma": step * 1.2,
            "mirror": normal(*image) if self.warm else None,
            "dual": normal(*image[:2], edges, *self.spatial) * 0.5 if self.warm else None,
        }

    def run(self, potts: Solver, tensors: dict[str, Tensor | None]) -> PottsIterates:
        t = tensors
        return potts(
            t["cost"],
            t["weights"],
            t["tau"],
            t["sigma"],
            mirror=t["mirror"],
            dual=t["dual"],
            iterations=self.iterations,
            epsilon=self.epsilon,
            neighbours=self.neighbours,
            average=self.average,
            checkpoint=self.checkpoint,
        )


@cache
def truth(case: Case) -> Results:
    return values_and_gradients(case, reference, torch.float64)


SMALL = {
    "plain": Case(spatial=(5, 6), iterations=2),
    "cold start": Case(warm=False, weights="none", iterations=2),
    "weights for everything": Case(weights="all", batch=2, spatial=(3, 4), iterations=2),
    "weights per label and row": Case(weights="label_row", batch=2, spatial=(3, 4), iterations=2),
    "average and entropy": Case(average=True, epsilon=0.2, batch=2, spatial=(3, 4), iterations=3),
    "checkpoints": Case(checkpoint=2, average=True, epsilon=0.1, spatial=(3, 4), iterations=3),
    "eight neighbours": Case(neighbours=8, spatial=(3, 4), iterations=2),
    "neighbours at a distance": Case(
        neighbours=((1, 0), (0, 1), (0, 3), (2, -3), (3, 1)), spatial=(4, 5), iterations=3
    ),
    "volume": Case(spatial=(3, 2, 4), iterations=2),
    "one row": Case(spatial=(1, 7), iterations=2),
    "one column, eight neighbours": Case(spatial=(7, 1), neighbours=8, iterations=2),
    "many labels": Case(labels=11, spatial=(2, 3), iterations=2, average=True, epsilon=0.2),
    "many weights": Case(labels=11, spatial=(2, 3), iterations=2, weights="all"),
    "several tiles": Case(spatial=(5, 37), iterations=2, labels=2),
    "strong costs": Case(scale=16.0, spatial=(3, 4), iterations=3),
    "one iteration": Case(iterations=1),
}
FAR = ((1, 0), (0, 1), (0, 7), (5, 0), (2, -19), (6, 11))
LARGE = {
    "far neighbours": Case(neighbours=FAR, spatial=(31, 37), iterations=5),
    "far neighbours, several images": Case(
        neighbours=FAR, batch=3, spatial=(6, 20), iterations=4, epsilon=0.1, average=True
    ),
    "far neighbours, checkpoints": Case(
        neighbours=FAR, spatial=(50, 21), iterations=7, checkpoint=3, weights="label"
    ),
    "plain, longer": Case(),
    "cold start with weights": Case(warm=False),
    "no weights": Case(weights="none"),
    "scalar weights": Case(weights="scalar"),
    "weights shared by the batch": Case(weights="shared", batch=3),
    "weights per label": Case(weights="label", batch=2),
    "entropy": Case(epsilon=0.2),
    "average": Case(average=True),
    "eight neighbours, no weights": Case(neighbours=8, weights="none"),
    "volume, longer": Case(spatial=(3, 4, 5)),
    "volume, no weights": Case(spatial=(4, 3, 2), weights="none"),
    "volume, weights per label and slice": Case(spatial=(4, 3, 5), weights="label_row"),
    "flat volume": Case(spatial=(1, 5, 4)),
    "one row, longer": Case(spatial=(1, 17)),
    "one column": Case(spatial=(17, 1)),
    "one pixel": Case(spatial=(1, 1)),
    "odd size": Case(spatial=(31, 37), iterations=4),
    "wider than a vector": Case(spatial=(4, 67)),
    "two labels": Case(labels=2),
    "five labels": Case(labels=5),
    "nineteen labels": Case(labels=19, spatial=(4, 5)),
    "sixty-four labels": Case(labels=64, spatial=(3, 4), iterations=3),
    "large batch": Case(batch=32, spatial=(3, 4), iterations=3),
    "strong weights": Case(weight_scale=100.0, spatial=(5, 6)),
}
SINGLE = ("plain", "checkpoints", "strong costs")
"""What the interpreter runs in float32 too; float64 finds more."""
CASES = in_both_precisions(SMALL, LARGE, SINGLE)
LONG = {
    "long": Case(spatial=(40, 33), iterations=100),
    "long, entropy": Case(spatial=(40, 33), iterations=100, epsilon=0.1, average=True),
    "long, strong costs": Case(spatial=(40, 33), iterations=100, scale=8.0),
    "long, eight neighbours": Case(spatial=(33, 40), iterations=60, neighbours=8, checkpoint=9),
    "long volume": Case(spatial=(24, 5, 19), iterations=40, average=True),
    "long, small batch": Case(batch=3, spatial=(40, 33), iterations=50, labels=5),
}


ASSEMBLY = """
import torch
from legato.nn.potts import numba, rows
cost, step = torch.randn(1, 3, 8, 9, requires_grad=True), torch.tensor(0.3)
numba.potts(cost, None, step, step, iterations=2).probabilities[0, 0].sum().backward()
for function in (rows.forward_steps, rows.reverse_steps, rows._primal_row):
    print(*(line for text in function.inspect_asm().values() for line in text.splitlines()
            if "div" in line), sep="\\n")
    print("---")
"""


@numba_only
def test_numba_loops_are_vectors(tmp_path: Path) -> None:
    """Every tanh and softmax divides: packed divisions mean that their loops became vectors.

    Code from Numba's cache comes without its assembly. Where the cache is cold this, the first test
    of all, fills it for the others; else it is compiled once more, elsewhere.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("looks for x86 instructions")
    source = Path(__file__).resolve().parents[2] / "src"
    here = os.environ | {"PYTHONPATH": str(source)}
    for environment in (here, here | {"NUMBA_CACHE_DIR": str(tmp_path)}):
        command = [sys.executable, "-c", ASSEMBLY]
        out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        functions = out.stdout.split("---")[:3]
        assert len(functions) == 3
        if all("div" in function for function in functions):
            break
    for divisions in functions:
        assert "divps" in divisions


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_values_and_gradients(kernel: Kernel, case: Case, dtype: torch.dtype) -> None:
    values, gradients = values_and_gradients(case, kernel.solve, dtype, kernel.device)
    right_values, right_gradients = truth(case)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-10
    assert_close(values, right_values, tolerance)
    assert_close(gradients, right_gradients, tolerance)


@not_interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("case", LONG.values(), ids=LONG.keys())
def test_long_runs(kernel: Kernel, case: Case, dtype: torch.dtype) -> None:
    test_values_and_gradients(kernel, case, dtype)


@not_interpreted
@pytest.mark.parametrize("output", ["mirror", "dual", "probabilities", "mean"])
def test_cotangent_of_one_output(kernel: Kernel, output: str) -> None:
    case = Case(average=True, epsilon=0.1)

    def gradients(potts: Solver, device: str) -> list[Tensor]:
        inputs = leaves(case.tensors(), torch.float64, device)
        value = getattr(case.run(potts, inputs), output)
        bar = torch.randn(
            value.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64
        )
        named = [t for t in inputs.values() if t is not None]
        return [g.cpu() for g in torch.autograd.grad((value * bar.to(device)).sum(), named)]

    for got, right in zip(
        gradients(kernel.solve, kernel.device), gradients(reference, "cpu"), strict=True
    ):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)


@not_interpreted
def test_mean_is_the_mean_of_the_iterates(kernel: Kernel) -> None:
    case = Case(iterations=3, average=True)
    tensors = {n: None if t is None else t.to(kernel.device) for n, t in case.tensors().items()}
    each = [
        replace(case, iterations=k, average=False).run(kernel.solve, tensors).probabilities
        for k in (1, 2, 3)
    ]
    mean = case.run(kernel.solve, tensors).mean
    torch.testing.assert_close(mean, torch.stack(each).mean(0))


@not_interpreted
def test_continuing_equals_running_on(kernel: Kernel) -> None:
    case = Case(iterations=5)
    tensors = {n: None if t is None else t.to(kernel.device) for n, t in case.tensors().items()}
    once = replace(case, iterations=8).run(kernel.solve, tensors)
    half = case.run(kernel.solve, tensors)
    tensors |= {"mirror": half.mirror, "dual": half.dual}
    twice = replace(case, iterations=3).run(kernel.solve, tensors)
    for got, right in zip(twice[:3], once[:3], strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("layout", ["channels last", "slice", "transposed", "expanded"])
def test_any_memory_layout(kernel: Kernel, layout: str) -> None:
    case = Case(batch=2, spatial=(2, 3), iterations=2)
    tensors = {n: None if t is None else t.to(kernel.device) for n, t in case.tensors().items()}
    plain = case.run(kernel.solve, tensors)

    def rearrange(t: Tensor | None) -> Tensor | None:
        if t is None or t.dim() < 4:
            return t
        if layout == "channels last" and t.dim() == 4:
            return t.to(memory_format=torch.channels_last)
        if layout == "slice":
            return torch.stack((t, t), -1)[..., 0]
        if layout == "transposed":
            return t.transpose(-1, -2).contiguous().transpose(-1, -2)
        return t

    other = {name: rearrange(t) for name, t in tensors.items()}
    if layout == "expanded":
        assert tensors["cost"] is not None
        other["cost"] = tensors["cost"][:1].expand(2, -1, -1, -1)
        tensors["cost"] = other["cost"].contiguous()
        plain = case.run(kernel.solve, tensors)
    for got, right in zip(case.run(kernel.solve, other)[:3], plain[:3], strict=True):
        torch.testing.assert_close(got, right)
        assert got.is_contiguous()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extreme_costs_stay_finite(kernel: Kernel, sign: float) -> None:
    case = Case(iterations=2 if SLOW else 100, warm=False, spatial=(3, 4))
    inputs = leaves(case.tensors(), torch.float32, kernel.device)
    cost = inputs["cost"]
    assert cost is not None
    inputs["cost"] = cost = (sign * 1e4 * cost.detach().sign()).requires_grad_()
    outputs = case.run(kernel.solve, inputs)
    named = [t for t in inputs.values() if t is not None]
    loss = outputs.probabilities.square().sum() + torch.log_softmax(outputs.mirror, 1)[:, 0].mean()
    gradients = torch.autograd.grad(loss, named)
    for t in (*outputs[:3], *gradients):
        assert torch.isfinite(t).all()
    assert torch.allclose(outputs.probabilities.sum(1), torch.ones(()).to(cost))


@not_interpreted
def test_zero_weights_give_a_softmax(kernel: Kernel) -> None:
    case = Case(warm=False)
    tensors = {n: None if t is None else t.to(kernel.device) for n, t in case.tensors().items()}
    cost, tau, weights = tensors["cost"], tensors["tau"], tensors["weights"]
    assert cost is not None
    assert tau is not None
    assert weights is not None
    tensors["weights"] = torch.zeros_like(weights)
    u = case.run(kernel.solve, tensors).probabilities
    torch.testing.assert_close(u, torch.softmax(-case.iterations * tau * cost, 1))


@not_interpreted
def test_gradient_of_the_weights_only(kernel: Kernel) -> None:
    case = Case()

    def gradient(potts: Solver, device: str) -> Tensor:
        tensors = {n: None if t is None else t.to(device) for n, t in case.tensors().items()}
        weights = tensors["weights"]
        assert weights is not None
        weights.requires_grad_()
        u = case.run(potts, tensors).probabilities
        (result,) = torch.autograd.grad(u.square().sum(), weights)
        return result.cpu()

    torch.testing.assert_close(
        gradient(kernel.solve, kernel.device), gradient(reference, "cpu"), rtol=1e-10, atol=1e-12
    )


@not_interpreted
@pytest.mark.parametrize("interval", [1, 2, 3, 5, 6, 9])
def test_checkpoints_change_nothing(kernel: Kernel, interval: int) -> None:
    plain = Case(average=True, spatial=(5, 6))
    values, gradients = values_and_gradients(plain, kernel.solve, torch.float32, kernel.device)
    marked = replace(plain, checkpoint=interval)
    other_values, other = values_and_gradients(marked, kernel.solve, torch.float32, kernel.device)
    assert_close(other_values, values, 2e-6)
    assert_close(other, gradients, 2e-6)


@not_interpreted
def test_backward_twice(kernel: Kernel) -> None:
    case = Case()
    inputs = leaves(case.tensors(), torch.float64, kernel.device)
    cost = inputs["cost"]
    assert cost is not None
    loss = case.run(kernel.solve, inputs).probabilities.square().sum()
    (first,) = torch.autograd.grad(loss, cost, retain_graph=True)
    (second,) = torch.autograd.grad(loss, cost)
    assert torch.equal(first, second)


def test_settings_pass_through_the_operators() -> None:
    for settings in (
        PottsSettings(7, offsets(3), average=True),
        PottsSettings(20, offsets(2, ((1, 0), (0, 1), (3, -2))), checkpoint=4, epsilon=0.5),
    ):
        sizes, numbers = PottsKernel.packed(None, settings)
        assert all(type(size) is int for size in sizes)
        assert PottsKernel.unpacked(None, sizes, numbers) == settings


def test_the_operator_is_what_torch_expects(kernel: Kernel) -> None:
    case = Case(spatial=(4, 5), iterations=2)
    t = leaves(case.tensors(), torch.float64, kernel.device)
    operator = getattr(torch.ops.legato, f"potts_{kernel.name}").default
    settings = PottsSettings(2, offsets(2))
    arguments = (list(t.values()), *PottsKernel.packed(None, settings), True)
    torch.library.opcheck(
        operator,
        arguments,
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


@not_interpreted
@pytest.mark.parametrize("neighbours", [4, ((1, 0), (0, 1), (2, -3))])
def test_under_compile(kernel: Kernel, neighbours: Neighbours) -> None:
    case = Case(spatial=(4, 5), iterations=2, neighbours=neighbours)

    def loss(cost: Tensor, tensors: dict[str, Tensor | None]) -> Tensor:
        return case.run(kernel.solve, tensors | {"cost": 2 * cost}).probabilities.square().sum()

    inputs = leaves(case.tensors(), torch.float64, kernel.device)
    cost = inputs["cost"]
    assert cost is not None
    (eager,) = torch.autograd.grad(loss(cost, inputs), cost)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    (graph,) = torch.autograd.grad(compiled(cost, inputs), cost)
    torch.testing.assert_close(graph, eager)


def _numba_case() -> dict[str, Tensor]:
    return values_and_gradients(
        Case(spatial=(40, 33)), load("potts", "numba").solve, torch.float32
    )[1]


@numba_only
def test_the_mean_is_made_where_it_is_asked_for_only() -> None:
    """It is as large as the image, and u¹ itself after one iteration."""
    potts, cost, step = load("potts", "numba").solve, torch.randn(1, 3, 4, 5), torch.tensor(0.3)
    assert potts(cost, None, step, step, iterations=1).mean is None
    found = potts(cost, None, step, step, iterations=1, average=True)
    torch.testing.assert_close(found.mean, found.probabilities)


@numba_only
def test_numba_results_do_not_depend_on_the_threads() -> None:
    def gradients(threads: int) -> dict[str, Tensor]:
        torch.set_num_threads(threads)
        return _numba_case()

    one = gradients(1)
    for threads in (2, 3, 5):
        assert_close(gradients(threads), one, 1e-6)


@numba_only
def test_gradients_of_large_losses_in_several_bands() -> None:
    """A thousand times the loss has a thousand times the gradient, across the margins too."""
    case = Case(spatial=(40, 17), neighbours=8)

    def gradients(potts: Solver) -> dict[str, Tensor]:
        inputs = {
            k: t for k, t in leaves(case.tensors(), torch.float64, "cpu").items() if t is not None
        }
        found = case.run(potts, {"weights": None, **inputs}).probabilities
        loss = 1e3 * (found * torch.linspace(-1, 1, 17).double()).square().sum()
        return dict(zip(inputs, torch.autograd.grad(loss, list(inputs.values())), strict=True))

    assert_close(gradients(load("potts", "numba").solve), gradients(reference), 1e-10)


@numba_only
def test_numba_from_several_threads_at_once() -> None:
    right = _numba_case()
    results: list[dict[str, Tensor]] = []
    threads = [threading.Thread(target=lambda: results.append(_numba_case())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for result in results:
        assert_close(result, right, 1e-6)


def _forked(queue: Any) -> None:
    # A forked child must not use torch's threads, which did not survive the fork; ours did not
    # either, and are started anew.
    case = Case(spatial=(40, 33), warm=False)
    tensors = {n: None if t is None else t.float() for n, t in case.tensors().items()}
    u = case.run(load("potts", "numba").solve, tensors).probabilities
    queue.put(u.numpy().tolist())


@numba_only
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_numba_after_a_fork() -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork here")
    case = Case(spatial=(40, 33), warm=False)
    tensors = {n: None if t is None else t.float() for n, t in case.tensors().items()}
    right = case.run(load("potts", "numba").solve, tensors).probabilities
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_forked, args=(queue,))
    process.start()
    got = torch.tensor(queue.get(timeout=60))
    process.join(60)
    assert process.exitcode == 0
    torch.testing.assert_close(got, right)


@interpreter_needed
def test_triton_by_its_interpreter() -> None:
    assert passed_by_the_interpreter(__file__) >= len(SMALL) + len(SINGLE)


# --- derivatives that torch asks for in other ways ------------------------------------------------


def _loss_of_cost(kernel: Kernel, case: Case) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    tensors = {n: None if t is None else t.to(kernel.device) for n, t in case.tensors().items()}
    cost = tensors["cost"]
    assert cost is not None

    def loss(cost: Tensor) -> Tensor:
        return case.run(kernel.solve, tensors | {"cost": cost}).probabilities.square().sum()

    return loss, cost


def test_second_derivatives_are_refused(kernel: Kernel) -> None:
    loss, cost = _loss_of_cost(kernel, Case(spatial=(2, 3), iterations=2))
    cost.requires_grad_()
    (plain,) = torch.autograd.grad(loss(cost), cost)
    (recorded,) = torch.autograd.grad(loss(cost), cost, create_graph=True)
    assert torch.equal(plain, recorded)
    with pytest.raises(GradientError, match=r"second derivatives.*kernel=\"reference\""):
        recorded.sum().backward()


def test_functional_transforms_are_refused(kernel: Kernel) -> None:
    case = Case(spatial=(2, 3), iterations=2)
    loss, cost = _loss_of_cost(kernel, case)
    with pytest.raises(GradientError, match=r"torch\.func.*kernel=\"reference\""):
        torch.func.grad(loss)(cost)
    with pytest.raises(GradientError, match=r"forward mode.*kernel=\"reference\""):
        torch.func.jvp(loss, (cost,), (cost,))
    leaf = cost.clone().requires_grad_()
    (right,) = torch.autograd.grad(loss(leaf), leaf)
    through = _loss_of_cost(replace(kernel, solve=reference), case)[0]
    torch.testing.assert_close(torch.func.grad(through)(cost), right)


def test_gradients_do_not_depend_on_the_layout_of_the_state(kernel: Kernel) -> None:
    case = Case(spatial=(2, 3), iterations=2, epsilon=0.1)

    def gradients(transposed: bool) -> list[Tensor]:
        inputs = leaves(case.tensors(), torch.float64, kernel.device)
        state = {name: t for name in ("mirror", "dual") if (t := inputs[name]) is not None}
        if transposed:
            state = {n: t.mT.contiguous().mT for n, t in state.items()}
        u = case.run(kernel.solve, inputs | state).probabilities
        return list(
            torch.autograd.grad(u.square().sum(), [t for t in inputs.values() if t is not None])
        )

    for got, right in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(got, right)


# --- Triton: long solves --------------------------------------------------------------------------

SECTIONED = {
    "warm, entropy, mean": Case(spatial=(2, 3), iterations=5, epsilon=0.1, average=True),
    "cold": Case(spatial=(2, 3), iterations=4, warm=False, labels=2),
    "checkpoints beyond a section": Case(spatial=(2, 3), iterations=5, checkpoint=4),
}


@triton_only
@pytest.mark.parametrize("case", SECTIONED.values(), ids=SECTIONED.keys())
def test_triton_sections_change_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long solve is cut into sections; here they have two iterations."""
    module = importlib.import_module("legato.nn.potts.triton.host")
    monkeypatch.setattr(module, "SECTION_ITERATIONS", 2)
    module._sections.cache_clear()
    kernel = load("potts", "triton")
    values, gradients = values_and_gradients(case, kernel.solve, torch.float64, kernel.device)
    tensors = {n: None if t is None else t.to(kernel.device) for n, t in case.tensors().items()}
    without_tape = case.run(kernel.solve, tensors)
    module._sections.cache_clear()
    assert_close(values, truth(case)[0], 1e-10)
    assert_close(gradients, truth(case)[1], 1e-10)
    for name, value in without_tape._asdict().items():
        if value is not None:
            torch.testing.assert_close(value.cpu(), values[name])


VERY_LONG = {
    "strong weights": Case(spatial=(64, 65), labels=2, iterations=100, weight_scale=100.0),
    "entropy": Case(spatial=(40, 33), iterations=500, epsilon=0.05),
    "entropy and mean": Case(
        spatial=(20, 33), labels=2, iterations=1500, epsilon=0.05, average=True
    ),
}


@triton_only
@not_interpreted
@pytest.mark.parametrize("case", VERY_LONG.values(), ids=VERY_LONG.keys())
def test_triton_very_long_runs(case: Case) -> None:
    """Where rounding adds up if it may: in the tape, in a cotangent's sum, in ∂τ with entropy.

    ∂τ vanishes as the solve converges, and 2e-5 of what is left may be too much to ask of float32:
    there the reference in float32 sets the bound.
    """
    kernel = load("potts", "triton")
    found = values_and_gradients(case, kernel.solve, torch.float32, kernel.device)
    plain = values_and_gradients(case, reference, torch.float32)
    for got, theirs, right in zip(found, plain, truth(case), strict=True):
        for name, value in right.items():
            size = max(1.0, float(value.abs().max()))
            error, bound = (float((x[name] - value).abs().max()) / size for x in (got, theirs))
            assert error <= max(2e-5, bound), f"{name} is {error:.1e} off"
