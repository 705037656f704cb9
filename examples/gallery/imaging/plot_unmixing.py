r"""
Unmixing spectra, in two geometries
===================================

What is in a pixel seen from the air, and which spectra explain that best?

Its spectrum is Dx, with the spectra of pure materials in the columns of D and abundances x in the
simplex. The library's spectra never quite fit the scene; forty pixels of known abundances correct
them, through the solution of

.. math:: x(D) = \arg\min_{x ∈ Δ} \tfrac12‖Dx − y‖²
"""

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.nn import SimplexLeastSquares

torch.manual_seed(0)
bands = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
centres, widths = torch.tensor([[0.2, 0.45, 0.6, 0.85], [0.2, 0.3, 0.15, 0.25]]).double()
true = 0.2 + torch.exp(-((bands - centres) ** 2) / widths**2)
library = 0.2 + torch.exp(-((bands - centres - 0.05) ** 2) / (1.3 * widths) ** 2)  # not quite
grid = torch.stack(torch.meshgrid(*[torch.linspace(0, 1, 24).double()] * 2, indexing="ij"), -1)
corners = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).double()
x = torch.softmax(-12 * (grid[:, :, None] - corners).norm(dim=-1), -1).reshape(-1, 4)
y = x @ true.T + 0.01 * torch.randn(len(x), 40).double()
labelled = torch.randperm(len(x))[:40]

# %%
# Euclidean steps project onto the simplex: they get there soon, and what is cut off has no slope.
# Entropic steps multiply: they take longer, but every entry stays positive and smooth in D.
geometries = {"Euclidean": (40, lg.Euclidean()), "entropic": (150, lg.Entropy())}
spectra, errors = {}, {}
for name, (iterations, geometry) in geometries.items():
    unmix = SimplexLeastSquares(iterations, geometry=geometry)
    D = library.clone().requires_grad_()
    optimizer = torch.optim.Adam([D], lr=0.05)
    errors[name] = []
    for _ in range(36):
        loss = (unmix(D, y[labelled]) - x[labelled]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            errors[name].append(float((unmix(D, y) - x).square().mean().sqrt()))
    spectra[name] = D.detach()

# %%
# Error of the abundances in the whole scene, most of it unlabelled. The learned spectra need not
# look like the true ones: they are judged by the abundances they lead to.
figure, axes = plt.subplots(2, 2, figsize=(8.5, 6.5), layout="constrained")
axes = axes.flat
for name, course in errors.items():
    axes[0].semilogy(course, label=name)
axes[0].set(xlabel="step", ylabel="error of abundances", title="learning the dictionary")
axes[0].legend()
for colour, D, style in ((0.0, true, "-"), (0.7, library, ":"), (0.4, spectra["entropic"], "--")):
    axes[1].plot(bands, D, style, color=str(colour))
axes[1].set(xlabel="wavelength", ylabel="intensity", title="true –, library ··, learned --")
maps = {"library": SimplexLeastSquares(40)(library, y), "learned": unmix(D, y).detach()}
for axis, (name, found) in zip(axes[2:], maps.items(), strict=True):
    axis.imshow(found[:, :3].reshape(24, 24, 3).clamp(0, 1).numpy())
    axis.set_title(f"abundances, {name}: {float((found - x).square().mean().sqrt()):.3f}")
    axis.set_axis_off()
print({name: (round(course[0], 4), round(course[-1], 4)) for name, course in errors.items()})
assert all(course[-1] < course[0] / 3 for course in errors.values())
