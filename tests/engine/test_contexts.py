"""Engines inside of transforms, compilers, modes and threads; and how one is chosen."""

import threading
import warnings

import pytest
import torch

import legato as lg
import legato.engine
from engines import REPLAYED, assert_alike, outcome
from legato.engine import stepping
from legato.engine.switch import engine_of
from makers import randn

B = randn(3, seed=1)
FEW = lg.Stop(12)


def leaf(value=0.4):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def energy(weight, data=B):
    return lg.SquaredDistance(data) + lg.L1(weight)


def solved(weight, data=B, engine=REPLAYED):
    return lg.solve(energy(weight, data), lg.ForwardBackward(0.3), stop=FEW, engine=engine).x


# --- which one ------------------------------------------------------------------------------------


def test_a_block_a_function_an_argument():
    assert engine_of(None) is None
    with REPLAYED:
        assert engine_of(None) is REPLAYED
        assert engine_of(lg.Eager()) is None
        with lg.Eager():
            assert engine_of(None) is None
            assert engine_of(REPLAYED) is REPLAYED
        assert engine_of(None) is REPLAYED
    assert engine_of(None) is None

    @lg.Replayed()
    def inside():
        return engine_of(None)

    assert inside() == REPLAYED
    with pytest.raises(KeyError), REPLAYED:
        raise KeyError
    assert engine_of(None) is None


def test_a_block_is_a_matter_of_its_thread():
    found = []
    with REPLAYED:
        thread = threading.Thread(target=lambda: found.append(engine_of(None)))
        thread.start()
        thread.join()
    assert found == [None]


def test_layers_are_run_by_the_engine_of_the_block():
    legato.engine.forget()
    layer, data = legato.nn.SparseCoding(6, 4, iterations=5).double(), randn(2, 4, seed=3)
    plain = layer(data)
    assert not stepping._kept
    with REPLAYED:
        torch.testing.assert_close(layer(data), plain)
    assert stepping._kept


def test_compiled_says_what_it_takes():
    assert repr(lg.Compiled()) == "Compiled(steps=None)"
    with pytest.raises(lg.errors.InputError, match="whole number"):
        lg.Compiled(steps=0)
    blocks = {n: lg.Compiled().block(n, 20) for n in (1, 7, 100, 101)}
    assert blocks == {1: 1, 7: 7, 100: 10, 101: 10}
    assert lg.Compiled(steps=4).block(2, 20) == 2


# --- torch's modes --------------------------------------------------------------------------------


def test_functional_transforms():
    data = randn(4, 3, seed=5)

    def loss(weight, y):
        return (solved(weight, y) ** 2).sum()

    weight = leaf().detach()
    for transform in (
        lambda f: torch.func.grad(f)(weight, B),
        lambda f: torch.func.vmap(f, (None, 0))(weight, data),
        lambda f: torch.func.jvp(f, (weight, B), (weight, B))[1],
        lambda f: torch.func.jacrev(f, 1)(weight, B),
    ):
        with REPLAYED:
            found = transform(loss)
        expected = transform(lambda w, y: (solved(w, y, lg.Eager()) ** 2).sum())
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_forward_mode():
    tangents = []
    for engine in (lg.Eager(), REPLAYED):
        with torch.autograd.forward_ad.dual_level():
            weight = torch.autograd.forward_ad.make_dual(
                leaf().detach(), torch.tensor(1.0).double()
            )
            x = solved(weight, engine=engine)
            tangents.append(torch.autograd.forward_ad.unpack_dual(x).tangent.clone())
    assert float(tangents[0].abs().sum()) > 0
    torch.testing.assert_close(*tangents)


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.autograd.set_detect_anomaly(True),
        torch.enable_grad,
    ],
    ids=["no_grad", "inference", "autocast", "anomaly", "enable_grad"],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_modes(mode):
    legato.engine.forget()  # the step is recorded in this mode
    weight = leaf()
    with mode():
        found = solved(weight)
        expected = solved(weight, engine=lg.Eager())
        assert found.requires_grad == expected.requires_grad
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-12, atol=1e-14)
        if found.requires_grad:
            both = [torch.autograd.grad(x.square().sum(), weight)[0] for x in (found, expected)]
            torch.testing.assert_close(*both, rtol=1e-12, atol=1e-14)
    # And nothing of it stays.
    assert solved(weight).requires_grad


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
def test_anomaly_mode_finds_nan_in_recorded_steps():
    """Whether the steps differentiate within or are known from before; and it stays on."""
    smooth = lg.Composite(lg.Smooth(lambda x: 0.5 * ((x - B) ** 2).sum()), lg.L1(leaf()))
    for problem in (energy(leaf()), smooth):
        legato.engine.forget()
        for _ in range(2):
            with torch.autograd.set_detect_anomaly(True):
                how = lg.ForwardBackward(0.3), torch.zeros_like(B)
                found = lg.solve(problem, *how, stop=FEW, engine=REPLAYED).x
                assert torch.is_anomaly_enabled()
                with pytest.raises(RuntimeError, match="nan values"):
                    (found.sum() * float("nan")).backward()


def test_tensors_of_inference_mode_as_data():
    with torch.inference_mode():
        data = B.clone()
    found = outcome(lg.Composite(lg.SquaredDistance(data), lg.L1(0.3)), lg.ForwardBackward(0.3))
    expected = outcome(
        lg.Composite(lg.SquaredDistance(data), lg.L1(0.3)), lg.ForwardBackward(0.3),
        engine=lg.Eager(),
    )  # fmt: skip
    assert_alike(found, expected)


def test_a_solve_inside_of_a_recorded_step():
    """The inner one becomes a part of the outer one's step."""
    weight = leaf()

    def problem(inner_engine):
        def nested(x):
            inner = solved(weight, x, inner_engine)
            return 0.5 * ((inner - B) ** 2).sum() + 0.05 * (x**2).sum()

        return lg.Composite(lg.Smooth(nested), lg.Zero())

    start = torch.zeros(3, dtype=torch.float64)
    algorithm, settings = lg.ForwardBackward(0.1), {"learned": [weight], "stop": lg.Stop(4)}
    found = outcome(problem(REPLAYED), algorithm, start, **settings)
    expected = outcome(problem(lg.Eager()), algorithm, start, engine=lg.Eager(), **settings)
    assert_alike(found, expected)
    assert not found.fell_back


def test_another_dispatch_mode_looks_on():
    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Counting():
        found = solved(leaf())
    assert Counting.calls > 12  # every step was seen
    torch.testing.assert_close(found, solved(leaf(), engine=lg.Eager()).detach())


def test_four_threads():
    """Different problems at once, forward and backward, many times."""
    legato.engine.forget()
    expected, found, errors = {}, {}, []

    def build(i):
        data, weight = randn(3 + i % 2, seed=i), leaf(0.1 * (i + 1))
        if i == 3:
            return lg.SquaredDistance(data) + lg.L1(weight) @ lg.Differences((-1,)), weight
        return energy(weight, data), weight

    def once(i, engine):
        problem, weight = build(i)
        x = lg.solve(problem, stop=lg.Stop(20), engine=engine).x
        return torch.autograd.grad(x.square().sum(), weight)[0]

    def work(i):
        try:
            found[i] = [once(i, REPLAYED) for _ in range(10)]
        except Exception as error:
            errors.append(error)

    expected = {i: once(i, lg.Eager()) for i in range(4)}
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    for i in range(4):
        for value in found[i]:
            torch.testing.assert_close(value, expected[i], rtol=1e-12, atol=1e-14)


def test_compiled_on_a_tiny_problem():
    """One program of two steps each way; a machine without a compiler replays and says so."""
    weight = leaf()
    settings = {"learned": [weight], "stop": lg.Stop(4)}
    algorithm = lg.ForwardBackward(0.3)
    found = outcome(energy(weight), algorithm, engine=lg.Compiled(steps=2), **settings)
    assert_alike(outcome(energy(weight), algorithm, engine=lg.Eager(), **settings), found)
    weight.data.add_(0.1)
    again = outcome(energy(weight), algorithm, engine=lg.Compiled(steps=2), **settings)
    assert_alike(outcome(energy(weight), algorithm, engine=lg.Eager(), **settings), again)


def test_without_a_compiler_it_replays_and_says_so(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no working C++ compiler found")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    legato.engine.forget()
    weight = leaf()
    settings = {"learned": [weight], "stop": lg.Stop(4)}
    found = outcome(energy(weight), engine=lg.Compiled(steps=2), **settings)
    assert any("no working C++ compiler" in words for words in found.reasons)
    expected = outcome(energy(weight), engine=lg.Eager(), **settings)
    assert_alike(found, expected)
    legato.engine.forget()  # what was made without a compiler


def test_fullgraph_compilation_of_a_function_that_solves():
    def function(weight):
        problem = lg.Composite(lg.SquaredDistance(B), lg.L1(weight))
        return lg.solve(problem, lg.ForwardBackward(0.3), stop=lg.Stop(3), engine=REPLAYED).x

    weight = leaf().detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.compile(function, backend="eager")(weight)
    torch.testing.assert_close(found, function(weight), rtol=1e-12, atol=1e-14)
