"""Each seeded fault is shown by a check of its own, and the clean layers are clean."""

import pytest
import torch

from testing.seeded.case import Fault
from testing.seeded.clean import CLEAN
from testing.seeded.faults import FAULTS
from testing.seeded.slopes import (
    cotangent,
    gradients,
    leaves,
    outside_one_sided_slopes,
    slope_error,
)

BY_KIND = {fault.kind: fault for fault in FAULTS}
NAN = float("nan")

# The inputs whose gradient is wrong at the given inputs; that of every other input is right.
WRONG_SLOPES = {
    "wrong sign": (0,),
    "missing factor": (0, 1),
    "missing normaliser": (0,),
    "missing term": (0,),
    "missing multiplier": (0,),
    "symmetric only": (0, 1),
    "transposed axis": (0,),
    "wrong broadcast axis": (1,),
    "square only": (0, 1),
    "inverse permutation": (0,),
    "wrong boundary": (0,),
    "mean for a sum": (1,),
    "expanded input": (1,),
    "active set off by one": (0,),
    "epsilon in a norm": (0,),
    "straight through": (0,),
    "detached parameter": (1,),
    "one step for the limit": (0, 1),
    "truncated unrolling": (0,),
    "not converged": (0, 1),
    "batch leak, backward": (0, 1),
    "one element forgotten": (0,),
    "saturation": (0,),
}
NO_SLOPES = {"wrong tie", "single precision inside", "gradient dtype", "chance"}


def test_there_are_as_many_as_promised():
    assert len(BY_KIND) == len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    assert len({case.name for case in CLEAN}) == len(CLEAN) >= 200
    assert len({case.kind for case in CLEAN}) >= 60
    assert set(WRONG_SLOPES) | set(SPECIFIC) == set(BY_KIND)
    for case in (*FAULTS, *CLEAN):
        assert all(x.dtype == torch.float64 for x in case.inputs()), case
    assert all(fault.wrong.endswith(".") for fault in FAULTS)


@pytest.mark.parametrize("kind", sorted(set(BY_KIND) - NO_SLOPES))
def test_gradients_are_wrong_where_that_is_the_fault_and_right_elsewhere(kind):
    fault = BY_KIND[kind]
    for index in range(len(fault.inputs())):
        error = slope_error(fault, index)
        if index in WRONG_SLOPES.get(kind, ()):
            assert error > 1e-3, (kind, index)
        else:
            assert error < 1e-6, (kind, index, error)


# --- faults that differences at one point do not show ---------------------------------------------


def wrong_tie(fault: Fault):
    assert outside_one_sided_slopes(fault, 0) > 0.09


def requires_grad_subset(fault: Fault):
    A, b = leaves(fault)
    (_, both) = gradients(fault.layer, [A, b])
    y = fault.layer(A.detach(), b)
    (alone,) = torch.autograd.grad(y, b, cotangent(y))
    assert not torch.allclose(alone, both, rtol=1e-2)


def _alone_differs(fault: Fault, rtol: float):
    inputs, layer = fault.inputs(), fault.layer
    together = layer(*inputs)
    alone = torch.cat(
        [
            layer(*(x[b : b + 1] if i in fault.batch else x for i, x in enumerate(inputs)))
            for b in range(len(together))
        ]
    )
    assert not torch.allclose(alone, together, rtol=rtol, atol=0)


def leak_of_scale(fault: Fault):
    _alone_differs(fault, 1e-2)


def leak_of_step(fault: Fault):
    _alone_differs(fault, 1e-2)


def tolerance_of_the_batch(fault: Fault):
    _alone_differs(fault, 1e-6)


def leak_backward(fault: Fault):
    Q, c = leaves(fault)
    x = fault.layer(Q, c)
    first = torch.zeros_like(x)
    first[0] = cotangent(x)[0]
    (alone,) = torch.autograd.grad(x, c, first, retain_graph=True)
    (together,) = torch.autograd.grad(x, c, cotangent(x))
    assert not torch.allclose(alone[0], together[0], rtol=1e-2)


def _stale_after(fault: Fault, index: int):
    """The same layer, the same tensor with other numbers in it, and a new layer's answer."""
    layer, inputs = fault.layer, fault.inputs()
    layer(*inputs)
    inputs[index].mul_(1.5)
    assert not torch.allclose(layer(*inputs), fault.layer(*inputs), rtol=1e-2)


def stale_by_shape(fault: Fault):
    layer, (A, b) = fault.layer, fault.inputs()
    layer(A, b)
    assert not torch.allclose(layer(2 * A, b), fault.layer(2 * A, b), rtol=1e-2)


def stale_by_id(fault: Fault):
    _stale_after(fault, 0)


def stale_by_address(fault: Fault):
    _stale_after(fault, 1)


def stale_by_version(fault: Fault):
    (b,) = fault.inputs()
    layer, fresh = fault.layer, fault.layer
    layer(b)
    (name,) = fault.parameters
    for module in (layer, fresh):
        module.get_parameter(name).data.mul_(1.5)
    assert not torch.allclose(layer(b), fresh(b), rtol=1e-2)
    with torch.no_grad():
        layer.get_parameter(name).mul_(1.0)  # a write that is counted
    torch.testing.assert_close(layer(b), fresh(b))


def no_grad_before(fault: Fault):
    inputs, layer = leaves(fault), fault.layer
    with torch.no_grad():
        layer(*inputs)
    assert gradients(layer, inputs)[1].abs().max() == 0
    assert gradients(fault.layer, inputs)[1].abs().max() > 0.1


def warm_start(fault: Fault):
    layer, inputs = fault.layer, fault.inputs()
    assert not torch.allclose(layer(*inputs), layer(*inputs), rtol=1e-2)


def buffer_reused(fault: Fault):
    layer, (x,) = fault.layer, fault.inputs()
    first = layer(x)
    kept = first.clone()
    layer(x + 1)
    assert not torch.allclose(first, kept, rtol=1e-2)


def input_changed(fault: Fault):
    (x,) = fault.inputs()
    before = x.clone()
    torch.testing.assert_close(fault.layer(x), before.softmax(-1))
    assert not torch.equal(x, before)


def strides_ignored(fault: Fault):
    (x,) = fault.inputs()
    other_strides = x.mT.contiguous().mT
    assert torch.equal(x, other_strides)
    assert not torch.allclose(fault.layer(x), fault.layer(other_strides), rtol=1e-2)


def second_backward(fault: Fault):
    (x,) = leaves(fault)
    y = fault.layer(x)
    first, second = (
        torch.autograd.grad(y, x, cotangent(y), retain_graph=True)[0] for _ in range(2)
    )
    assert not torch.allclose(first, second, rtol=1e-2)


def double_backward(fault: Fault):
    (x,) = leaves(fault)

    def second(layer):
        y = layer(x)
        weights = cotangent(y).requires_grad_()
        (g,) = torch.autograd.grad(y, x, weights, create_graph=True)
        assert g.requires_grad  # nothing is raised: the graph of the gradient looks complete
        found = torch.autograd.grad(g, x, cotangent(g, 12), allow_unused=True)[0]
        return torch.zeros_like(x) if found is None else found

    exact = second(lambda z: z / z.norm(dim=-1, keepdim=True))
    assert exact.abs().max() > 0.1
    assert not torch.allclose(second(fault.layer), exact, rtol=1e-2)


def nan_swallowed(fault: Fault):
    (x,) = fault.inputs()
    x.view(-1)[0] = NAN
    assert fault.layer(x).isfinite().all()


def cotangent_threshold(fault: Fault):
    inputs = leaves(fault)
    assert gradients(fault.layer, inputs, scale=1e-10)[1].abs().max() == 0


def cotangent_clamped(fault: Fault):
    inputs = leaves(fault)
    (once,), (often,) = (gradients(fault.layer, inputs, scale=s) for s in (1.0, 1e3))
    assert not torch.allclose(often, 1e3 * once, rtol=1e-2)


def single_precision_inside(fault: Fault):
    y = fault.layer(*fault.inputs())
    assert y.dtype == torch.float64
    assert torch.equal(y.float().double(), y)
    assert slope_error(fault, 0) > 1e-3


def gradient_dtype(fault: Fault):
    (g,) = gradients(fault.layer, leaves(fault))
    assert g.dtype == torch.float64
    assert torch.equal(g.float().double(), g)
    assert 1e-9 < slope_error(fault, 0) < 1e-6


def output_dtype(fault: Fault):
    assert fault.layer(*(x.float() for x in fault.inputs())).dtype == torch.float64


def chance(fault: Fault):
    layer, inputs = fault.layer, fault.inputs()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert not torch.allclose(layer(*inputs), layer(*inputs), rtol=1e-3)


def saturation(fault: Fault):
    (x,) = leaves(fault)
    (g,) = gradients(fault.layer, [x])
    exact = cotangent(g) * torch.nn.functional.softplus(x) * x.sigmoid()
    wrong = (g - exact).abs() > 1e-6 * exact.abs()
    assert torch.equal(wrong, x > 20)
    assert wrong.any()


def forgotten(fault: Fault):
    (g,) = gradients(fault.layer, leaves(fault))
    assert g[-1].abs().max() == 0
    assert (g[:-1].abs().amax(-1) > 0).all()


SPECIFIC = {
    "wrong tie": wrong_tie,
    "requires_grad subset": requires_grad_subset,
    "batch leak, scale": leak_of_scale,
    "batch leak, step": leak_of_step,
    "batch leak, backward": leak_backward,
    "tolerance of the batch": tolerance_of_the_batch,
    "one element forgotten": forgotten,
    "stale cache, shape": stale_by_shape,
    "stale cache, id": stale_by_id,
    "stale cache, data_ptr": stale_by_address,
    "stale cache, .data": stale_by_version,
    "no_grad before": no_grad_before,
    "warm start": warm_start,
    "buffer reused": buffer_reused,
    "input changed": input_changed,
    "strides ignored": strides_ignored,
    "second backward": second_backward,
    "double backward": double_backward,
    "NaN swallowed, nan_to_num": nan_swallowed,
    "NaN swallowed, comparison": nan_swallowed,
    "NaN swallowed, clamp": nan_swallowed,
    "cotangent threshold": cotangent_threshold,
    "cotangent clamped": cotangent_clamped,
    "single precision inside": single_precision_inside,
    "gradient dtype": gradient_dtype,
    "output dtype": output_dtype,
    "chance": chance,
    "saturation": saturation,
}


@pytest.mark.parametrize("kind", sorted(SPECIFIC))
def test_a_check_of_its_own_shows_the_fault(kind):
    SPECIFIC[kind](BY_KIND[kind])


# --- the clean layers -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.name)
def test_a_clean_layer_is_clean(case):
    inputs, layer = case.inputs(), case.layer
    y = layer(*inputs)
    assert torch.equal(layer(*inputs), y)
    for index in range(len(inputs)):
        if case.ties:
            assert outside_one_sided_slopes(case, index) < 1e-6
        else:
            assert slope_error(case, index) < 1e-6
    if case.batch and not case.coupled:
        for b in range(len(y)):
            part = [x[b : b + 1] if i in case.batch else x for i, x in enumerate(inputs)]
            torch.testing.assert_close(layer(*part), y[b : b + 1], rtol=1e-9, atol=1e-9)
    if case.follows:
        assert case.layer(*(x.float() for x in inputs)).dtype == torch.float32
