r"""
The last iterate or the average of all?
=======================================

Theory speaks of the average of the iterates; the last one is often better, but not always.

For the primal–dual algorithm theory promises a gap of order 1/N for the average. The last iterate
is promised little. Two problems: a game that is curved nowhere, and a denoising problem that is
strongly convex.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg

torch.manual_seed(0)
A = torch.randn(20, 15).double()
game = lg.Simplex().conjugate() @ A + lg.Simplex()  # max over y in Δ of ⟨Ax, y⟩, with x in Δ
entropic = {"geometry": lg.Entropy(), "dual_geometry": lg.Entropy(), "norm": float(A.abs().max())}
signal = torch.cat([torch.full((40,), v) for v in (0.0, 1.0, 0.3)]).double()
noisy = signal + 0.1 * torch.randn(120).double()
denoising = lg.SquaredDistance(noisy) + lg.L1(0.4) @ lg.Differences((-1,))
checkpoints = [2**k for k in range(2, 11)]


def gaps(energy, start, average, **options):
    """The primal–dual gap after 4, 8, …, 1024 iterations, each taken up where the last stopped."""
    algorithm, done, found = lg.PrimalDual(average=average, **options), 0, []
    for n in checkpoints:
        start = lg.solve(energy, algorithm, start, stop=lg.Stop(n - done))
        done = n
        found.append(max(float(start.gap), 1e-16))
    return found, start


# %%
# The solution of the same energy, passed as ``x0``, goes on where it stopped, averages included.
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
cases = (("a matrix game", game, torch.full((15,), 1 / 15).double(), entropic),
         ("denoising", denoising, noisy, {}))  # fmt: skip
results = {}
for axis, (title, energy, start, options) in zip(axes, cases, strict=False):
    for name, average in (("last", False), ("average", True)):
        results[title, name], solution = gaps(energy, start, average, **options)
        axis.loglog(checkpoints, results[title, name], "o-", label=f"{name} iterate")
    axis.loglog(checkpoints, [results[title, "average"][0] * 4 / n for n in checkpoints], "k:",
                label="1/N")  # fmt: skip
    axis.set(title=title, xlabel="iterations N", ylabel="primal–dual gap")
axes[0].legend()
axes[2].plot(noisy, ".", color="0.7")
axes[2].plot(solution.x, label="average of 1024")
axes[2].set(title="denoising, solved", xlabel="place", ylabel="value")
axes[2].legend()

# %%
# The average keeps its promise on both. It remembers its worst iterates for ever, though: where
# the last one converges linearly, the average cannot follow.
for title in ("a matrix game", "denoising"):
    last, average = results[title, "last"][-1], results[title, "average"][-1]
    print(f"{title}: gap after 1024 iterations, last {last:.1e}, average {average:.1e}")
    assert average <= 4 * results[title, "average"][0] * 4 / 1024
assert results["a matrix game", "average"][4] < results["a matrix game", "last"][4]
assert results["denoising", "last"][-1] < 1e-3 * results["denoising", "average"][-1]
