"""Solves as CUDA graphs: the same numbers as step by step, and nothing stale."""

import threading
import warnings

import pytest
import torch

import legato as lg
import legato.engine
from legato.errors import EagerWarning
from legato.testing import small_problems

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

REPLAYED = lg.Replayed()
F64 = torch.float64
STEP_BY_STEP = ("ridge", "logistic", "lasso by Newton", "polytope")
PROBLEMS = [n for n in small_problems() if n not in STEP_BY_STEP]
"""Without those that look at values: Newton, and the mirror map of a polyhedron."""


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=F64).cuda()


def leaf(value=0.4, device="cuda"):
    return torch.tensor(value, dtype=F64, device=device, requires_grad=True)


def gradients(problem, algorithm, learned, engine, x0=None, **settings):
    """The solution and the gradients of a loss that sees every entry differently."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", EagerWarning)
        x = lg.solve(problem, algorithm, x0, engine=engine, **settings).x
        slope = torch.cos(torch.arange(x.numel(), dtype=x.dtype, device=x.device)).reshape(x.shape)
        found = torch.autograd.grad((slope * x + 0.5 * x * x).sum(), learned)
    return x.detach(), *found


def assert_same(build, learned, rtol=1e-9, **settings):
    """Step by step and replayed twice: once as it is captured, once more from the graph."""
    expected = gradients(*build(), learned, lg.Eager(), **settings)
    for _ in range(2):
        found = gradients(*build(), learned, REPLAYED, **settings)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)
    return found


def lasso(data, weight):
    A = randn(30, 12, seed=1)
    return lg.Composite(lg.LeastSquares(A, data), lg.L1(weight)), lg.ForwardBackward()


@pytest.mark.parametrize("stop", [lg.Stop(30), lg.Stop(100, tol=1e-4)], ids=repr)
@pytest.mark.parametrize(
    "gradient",
    [lg.Unroll(), lg.Unroll(last=4), lg.FixedPoint(), lg.Implicit(lg.GMRES(1e-10))],
    ids=repr,
)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_small_problem(name, gradient, stop):
    small = small_problems()[name]
    theta = tuple(t.detach().cuda().requires_grad_() for t in small.parameters)

    def build():
        return small.make(*theta), small.algorithm

    assert_same(build, theta, rtol=1e-8, x0=small.x0.cuda(), gradient=gradient, stop=stop)


@pytest.mark.parametrize("gradient", [lg.Unroll(), lg.Implicit(lg.GMRES(1e-10))], ids=repr)
def test_a_number_on_the_host_is_seen_when_it_changes(gradient):
    """A graph would freeze the value that its kernels were given."""
    weight, data = leaf(device="cpu"), randn(30, seed=2)
    found = []
    for value in (0.4, 2.0, 0.4):
        weight.data.fill_(value)
        found.append(
            assert_same(lambda: lasso(data, weight), [weight], gradient=gradient, stop=lg.Stop(300))
        )
        assert found[-1][1].device.type == "cpu"
    assert not torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][0], found[2][0])


def test_data_replaced_and_changed_in_place():
    weight, data = leaf(), randn(30, seed=2)
    assert_same(lambda: lasso(data, weight), [weight])
    data.mul_(2)
    assert_same(lambda: lasso(data, weight), [weight])
    weight.data = torch.tensor(1.0, dtype=F64, device="cuda")
    assert_same(lambda: lasso(randn(30, seed=3), weight), [weight])
    for column in range(3):  # elsewhere in the same memory, not contiguous
        block = randn(30, 3, seed=4)
        assert_same(lambda c=column, m=block: lasso(m[:, c], weight), [weight])
    one = randn(1, seed=5).expand(30)
    assert_same(lambda: lasso(one, weight), [weight])


def test_the_default_dtype_is_not_frozen():
    weight = leaf()

    def build():
        smooth = lg.Smooth(lambda x: (0.5 * (x - 1) ** 2 + torch.full((3,), 0.1).to(x) * x).sum())
        return lg.Composite(smooth, lg.L1(weight)), lg.ForwardBackward(0.3)

    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            assert_same(build, [weight], x0=torch.zeros(3, dtype=F64, device="cuda"))
    finally:
        torch.set_default_dtype(before)


def test_several_tapes_are_alive_at_once():
    weights = [leaf(v) for v in (0.1, 0.5, 2.0)]
    data = randn(30, seed=2)
    alive = [lg.solve(*lasso(data, w), engine=REPLAYED).x for w in weights]
    expected = [
        torch.autograd.grad(lg.solve(*lasso(data, w)).x.square().sum(), w)[0] for w in weights
    ]
    for i in (2, 0, 1, 2):
        (found,) = torch.autograd.grad(alive[i].square().sum(), weights[i], retain_graph=True)
        torch.testing.assert_close(found, expected[i], rtol=1e-9, atol=1e-12)
    del alive
    again = lg.solve(*lasso(data, weights[0]), engine=REPLAYED).x
    (found,) = torch.autograd.grad(again.square().sum(), weights[0])
    torch.testing.assert_close(found, expected[0], rtol=1e-9, atol=1e-12)


def test_results_are_not_overwritten_by_the_next_call():
    data = randn(30, seed=2)
    with torch.no_grad():
        first = lg.solve(*lasso(data, 0.4), engine=REPLAYED)
        x, residual = first.x.clone(), first.residual.clone()
        lg.solve(*lasso(3 * data, 0.4), engine=REPLAYED)
        assert torch.equal(first.x, x)
        assert torch.equal(first.residual, residual)


def test_streams():
    """Calls from several streams share a graph and its memory."""
    data = randn(30, seed=2)
    with torch.no_grad():
        expected = [lg.solve(*lasso((i + 1) * data, 0.4)).x for i in range(4)]
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(4)]
        found = []
        for _ in range(5):
            for i, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    stream.wait_stream(torch.cuda.default_stream())
                    found.append((i, lg.solve(*lasso((i + 1) * data, 0.4), engine=REPLAYED).x))
        torch.cuda.synchronize()
    for i, x in found:
        torch.testing.assert_close(x, expected[i], rtol=1e-9, atol=1e-12)


def test_threads():
    data, errors, found = randn(30, seed=2), [], {}
    expected = {}
    for i in range(4):
        w = leaf(0.2 * (i + 1))
        expected[i] = torch.autograd.grad(lg.solve(*lasso(data, w)).x.square().sum(), w)[0]

    def work(i):
        try:
            for _ in range(5):
                w = leaf(0.2 * (i + 1))
                x = lg.solve(*lasso(data, w), engine=REPLAYED).x
                found[i] = torch.autograd.grad(x.square().sum(), w)[0]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    for i in range(4):
        torch.testing.assert_close(found[i], expected[i], rtol=1e-9, atol=1e-12)


def test_inside_of_somebody_elses_capture():
    """Given steps and a fixed number of iterations: the solve becomes part of the user's graph."""
    data, weight = randn(30, seed=2), torch.tensor(0.4, dtype=F64, device="cuda")
    problem, algorithm = lasso(data, weight)[0], lg.ForwardBackward(0.005)

    def function():
        with torch.no_grad():
            return lg.solve(problem, algorithm, torch.zeros(12, dtype=F64, device="cuda"),
                            stop=lg.Stop(20), engine=REPLAYED).x  # fmt: skip

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x = function()
    for scale in (1.0, 2.0):
        data.copy_(scale * randn(30, seed=2))
        graph.replay()
        with torch.no_grad():
            expected = lg.solve(problem, algorithm, torch.zeros(12, dtype=F64, device="cuda"),
                                stop=lg.Stop(20)).x  # fmt: skip
        torch.testing.assert_close(x, expected, rtol=1e-9, atol=1e-12)


def test_each_element_of_a_batch_stops_by_itself():
    sizes = torch.tensor([1.0, 1e-3, 1e3], dtype=F64, device="cuda")
    A = torch.stack([randn(12, 5, seed=i) for i in range(3)])
    data, weights = randn(3, 12, seed=9) * sizes[:, None], 0.1 * sizes[:, None]

    def solved(A, b, w, engine):
        problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
        with torch.no_grad():
            return lg.solve(
                problem, lg.ForwardBackward(), stop=lg.Stop(2000, tol=1e-7), engine=engine
            )

    batch = solved(A, data, weights, REPLAYED)
    for i in range(3):
        one = solved(A[i], data[i], weights[i], lg.Eager())
        assert one.iterations == int(batch.iterations[i])
        torch.testing.assert_close(batch.x[i], one.x, rtol=1e-9, atol=1e-12 * float(sizes[i]))


def test_memory_is_given_back():
    """All but what libraries keep for a stream, once a process."""
    data = randn(30, seed=2)
    w = leaf()
    torch.autograd.grad(lg.solve(*lasso(data, w), engine=REPLAYED).x.sum(), w)
    legato.engine.forget()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        w = leaf()
        torch.autograd.grad(lg.solve(*lasso(data, w), engine=REPLAYED).x.sum(), w)
    steady = torch.cuda.memory_allocated()
    for _ in range(50):
        w = leaf()
        torch.autograd.grad(lg.solve(*lasso(data, w), engine=REPLAYED).x.sum(), w)
    assert torch.cuda.memory_allocated() <= steady
    legato.engine.forget()
    assert torch.cuda.memory_allocated() <= before + 10_000


def test_a_problem_on_two_devices_is_refused():
    data = torch.ones(3, dtype=F64)
    smooth = lg.Smooth(lambda x: (0.5 * (x.cpu() - data) ** 2).sum())
    with pytest.warns(EagerWarning, match="several devices"):
        lg.solve(lg.Composite(smooth), lg.ForwardBackward(0.3),
                 torch.zeros(3, dtype=F64, device="cuda"), stop=lg.Stop(3),
                 engine=REPLAYED)  # fmt: skip
