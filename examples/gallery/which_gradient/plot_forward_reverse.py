r"""
Forward or reverse?
===================

Both are exact; which is cheaper depends on the numbers of parameters and of iterations.

The forward mode carries dx/dθ along: a row of tangents for each entry of θ, and no memory of the
past. The reverse mode goes back once for all entries, and has to remember every iterate. There are
P parameters and N iterations.
"""

import time

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.diagnostics import peak_bytes

torch.manual_seed(0)
A, b = torch.randn(60, 40).double(), torch.randn(60).double()
data = lg.LeastSquares(A, b)  # made once: it remembers ‖A‖


def gradient(count, iterations, make):
    """Of ½‖x‖² in the weights of a lasso, ``count`` of them, each shared by 40/count features."""
    theta = torch.full((count,), -1.0, dtype=torch.float64, requires_grad=True)
    weight = theta.exp().repeat_interleave(-(-40 // count))[:40]
    x = lg.solve(data + lg.L1(weight), gradient=make(theta), stop=lg.Stop(iterations)).x
    return torch.autograd.grad(0.5 * x.square().sum(), theta)[0]


def cost(count, iterations, make):
    gradient(count, iterations, make)  # warm up
    begin = time.perf_counter()
    gradient(count, iterations, make)
    seconds = time.perf_counter() - begin
    return seconds, peak_bytes(lambda: gradient(count, iterations, make), A.device) / 1024


# %%
# Left and middle: 30 iterations, more and more parameters. Right: 4 parameters, more and more
# iterations.
modes = {"Forward(θ)": lg.Forward, "Unroll()": lambda theta: lg.Unroll()}
counts, lengths = [1, 4, 10, 40], [10, 40, 160]
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
memory = {}
for name, make in modes.items():
    by_count = [cost(count, 30, make) for count in counts]
    by_length = [cost(4, n, make) for n in lengths]
    axes[0].loglog(counts, [s for s, _ in by_count], "o-", label=name)
    axes[1].loglog(counts, [m for _, m in by_count], "o-", label=name)
    axes[2].loglog(lengths, [m for _, m in by_length], "o-", label=name)
    memory[name] = ([m for _, m in by_count], [m for _, m in by_length])
labels = (("P", "seconds"), ("P", "KiB"), ("N", "KiB"))
for axis, (x, y) in zip(axes, labels, strict=True):
    axis.set(xlabel=f"{x}, number of {'parameters' if x == 'P' else 'iterations'}", ylabel=y)
axes[0].legend()

# %%
# Memory, counted and not sampled, says it exactly: forward grows with P, reverse with N.
forward, reverse = memory["Forward(θ)"], memory["Unroll()"]
print("KiB by P:", {n: [round(m) for m in v[0]] for n, v in memory.items()})
assert forward[0][-1] > 4 * forward[0][0]
assert max(reverse[0]) < 1.2 * min(reverse[0])
assert max(forward[1]) < 1.2 * min(forward[1])
assert reverse[1][-1] > 4 * reverse[1][0]
torch.testing.assert_close(*(gradient(10, 30, make) for make in modes.values()))
