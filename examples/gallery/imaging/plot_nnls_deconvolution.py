r"""
Counting stars with a blur you have to learn
============================================

Deblurring where the blur is not known: one picture of known stars teaches it.

If the blur k of a telescope were known, the stars would be the non-negative solution of a least
squares problem. The blur is learned by differentiating that solution:

.. math:: \min_k ‖x(k) − \text{stars}‖² \quad\text{with}\quad
          x(k) = \arg\min_{x ≥ 0} \tfrac12‖k * x − y‖²
"""

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.nn import NonNegativeLeastSquares

torch.manual_seed(0)
rows, columns = torch.meshgrid(torch.arange(-2.0, 3), torch.arange(-2.0, 3), indexing="ij")
true_kernel = torch.exp(-((rows - 0.6 * columns) ** 2) / 0.8 - columns**2 / 4)
true_kernel /= true_kernel.sum()


def sky():
    x = torch.rand(1, 28, 28) * (torch.rand(1, 28, 28) > 0.95)
    return x, lg.Convolution(true_kernel[None, None])(x) + 0.003 * torch.randn(1, 28, 28)


def kernel(theta):  # non-negative, of sum one
    return theta.flatten().softmax(0).reshape(1, 1, 5, 5)


# %%
# All 25 entries of the kernel are learned, from a round guess.
solver = NonNegativeLeastSquares(iterations=60)
stars, seen = sky()
guess = -(rows**2 + columns**2) / 2
theta = guess.clone().requires_grad_()
optimizer = torch.optim.Adam([theta], lr=0.15)
for _ in range(60):
    loss = (solver(lg.Convolution(kernel(theta)), seen) - stars).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# Another part of the sky, never seen in training.
stars, seen = sky()
learned = kernel(theta).detach()
found = {name: solver(lg.Convolution(k), seen)
         for name, k in (("guessed blur", kernel(guess)), ("learned blur", learned))}  # fmt: skip
error = {name: float((x - stars).norm() / stars.norm()) for name, x in found.items()}
figure, axes = plt.subplots(2, 3, figsize=(8, 5.6), layout="constrained")
pictures = {"stars": stars[0], "seen": seen[0]} | {
    f"{name}, error {error[name]:.0%}": x[0] for name, x in found.items()}  # fmt: skip
pictures |= {"true blur": true_kernel, "learned blur": learned[0, 0]}
for axis, (name, image) in zip(axes.flat, pictures.items(), strict=True):
    axis.imshow(image.numpy(), cmap="magma")
    axis.set_title(name, fontsize=10)
    axis.set_axis_off()
print({name: f"{e:.1%}" for name, e in error.items()})
assert error["learned blur"] < 0.5 * error["guessed blur"]
assert float((learned[0, 0] - true_kernel).abs().max()) < 0.03
