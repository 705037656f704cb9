r"""
Completing a matrix
===================

Six of ten entries of a table are missing, and come back because the table has a low rank.

The nuclear norm, the sum of singular values, is to the rank what the ℓ1 norm is to the number of
entries: :math:`\min_X \tfrac12 ‖M ⊙ (X − Y)‖² + λ\,‖X‖_*`.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg

torch.manual_seed(0)
truth = torch.randn(30, 2) @ torch.randn(2, 30) / 2**0.5
mask = (torch.rand(30, 30) < 0.4).float()
seen = mask * (truth + 0.02 * torch.randn(30, 30))

# %%
# The smaller the weight, the closer to the data: from a large one to a small one, each solve starts
# from the solution before.
x, errors, ranks = torch.zeros(30, 30), [], []
weights = [4.0, 2.0, 1.0, 0.5, 0.25, 0.1]
for weight in weights:
    energy = lg.SquaredDistance(seen) @ lg.Mask(mask) + lg.Nuclear(weight)
    x = lg.solve(energy, lg.ForwardBackward(), x, stop=lg.Stop(150)).x
    errors.append(float((x - truth).norm() / truth.norm()))
    ranks.append(int(torch.linalg.matrix_rank(x, atol=1e-3)))
    print(f"λ = {weight:<4}: rank {ranks[-1]:2}, relative error {errors[-1]:.3f}")

matrices = {"truth": truth, "seen": seen, "completed": x}
figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
for axis, (name, X) in zip(axes, matrices.items(), strict=False):
    axis.imshow(X.numpy(), cmap="RdBu", vmin=-2.5, vmax=2.5)
    axis.set_title(name)
    axis.set_axis_off()
axes[3].semilogx(weights, errors, "o-")
axes[3].set(xlabel="λ", ylabel="relative error", title="what λ does")
assert errors[-1] < 0.2
