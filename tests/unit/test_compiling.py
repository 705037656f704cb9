"""What torch.compile may look into, and that nobody pays for the compiler without it."""

import subprocess
import sys

import pytest
import torch

import legato as lg
from legato._support.compiling import constant_when_compiled, never_compiled
from makers import randn

A, b = randn(6, 4, seed=1), randn(6, seed=2)
PENALTY = lg.L1(torch.tensor(0.1).double())
GRADIENTS = [lg.Implicit(), lg.FixedPoint(300), lg.OneStep(tol=None)]
LOADED = """
import sys
import torch
before = "torch._dynamo" in sys.modules
import legato, legato.nn, legato.optim, legato.bilevel
x = torch.ones(2, requires_grad=True)
problem = legato.Composite(legato.LeastSquares(torch.eye(2), x), legato.L1(0.1))
gradient = legato.Implicit()
legato.solve(problem, legato.ForwardBackward(), gradient=gradient).x.sum().backward()
legato.nn.Potts(2, kernel="reference")(torch.ones(1, 2, 3, 3))
print(before, "torch._dynamo" in sys.modules)
"""


def test_the_compiler_is_not_imported_for_nothing():
    """It takes longer to import than legato itself."""
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    before, after = done.stdout.split()
    if before == "True":
        pytest.skip("this torch imports its compiler by itself")
    assert after == "False"


def value(scale, gradient):
    problem = lg.Composite(lg.LeastSquares(A, scale * b), PENALTY)
    return lg.solve(problem, lg.ForwardBackward(0.05), gradient=gradient, stop=lg.Stop(300)).x


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo looks at it
@pytest.mark.parametrize("gradient", GRADIENTS, ids=lambda g: type(g).__name__)
def test_solves_inside_a_compiled_function(gradient):
    def loss(scale):
        return value(2 * scale, gradient).square().sum() + scale

    scale = torch.tensor(1.1).double().requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager")
    torch.testing.assert_close(compiled(scale), loss(scale))
    ours = torch.autograd.grad(compiled(scale), scale)
    torch.testing.assert_close(ours, torch.autograd.grad(loss(scale), scale))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize(
    ("gradient", "reason"),
    [(lg.Implicit(), "the backward solve is data-dependent"), (None, "nested backward passes")],
    ids=["Implicit", "Forward"],
)
def test_one_whole_graph_is_refused_with_the_reason(gradient, reason):
    scale = torch.tensor(1.1).double().requires_grad_()
    gradient = lg.Forward(scale) if gradient is None else gradient
    torch._dynamo.reset()
    whole = torch.compile(lambda s: value(s, gradient), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=reason):
        whole(scale)


def test_what_is_never_compiled_runs_outside_the_compiler():
    seen = []

    @never_compiled("it looks")
    def look(x):
        seen.append(torch.compiler.is_compiling())
        return x + 1

    def around(x):
        return look(x * 2) * 3

    x = torch.ones(2)
    torch._dynamo.reset()
    for _ in range(2):
        torch.testing.assert_close(torch.compile(around, backend="eager")(x), around(x))
    assert seen == [False] * 4
    assert look.__name__ == "look"


def test_a_constant_is_computed_once_by_the_compiler():
    calls = []

    @constant_when_compiled
    def constant():
        calls.append(1)
        return 3.0

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * constant(), backend="eager", fullgraph=True)
    for _ in range(3):
        assert float(compiled(torch.tensor(2.0))) == 6.0
    assert len(calls) == 1


def test_a_tensor_in_front_of_an_operator_or_a_term_is_no_node_of_the_graph():
    """torch.compile would put the product into its graph, and rebuild both sides from proxies."""
    K, weight = randn(3, 4, seed=3), torch.tensor(2.0).double()

    def scaled(weight, K, x):
        return (weight * lg.Dense(K))(x).sum() + (weight * lg.SquaredDistance(x))(x + 1)

    def behind_a_matrix(weight, K, x):
        energy = lg.SquaredDistance(x) + lg.L1(weight) @ K
        return lg.solve(energy, stop=lg.Stop(5)).x

    x = randn(4, seed=4)
    for function, whole in ((scaled, True), (behind_a_matrix, False)):
        fast = torch.compile(function, backend="eager", fullgraph=whole)
        assert torch.equal(fast(weight, K, x), function(weight, K, x))
