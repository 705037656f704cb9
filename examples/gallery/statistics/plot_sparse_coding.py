r"""
A dictionary for digits, learned by what it is for
==================================================

Atoms that are learned through a classifier's loss become what tells digits apart.

Sparse codes z explain a picture y by a few atoms of a dictionary D:

.. math:: z(D) = \arg\min_z \tfrac12‖y − Dz‖² + λ‖z‖₁

Dictionaries are usually learned to reconstruct. Here a linear classifier reads the codes, and its
loss is differentiated through the argmin.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import legato as lg
from legato.nn import SparseCoding

torch.manual_seed(0)
digits = load_digits()
X = nn.functional.normalize(torch.from_numpy(digits.data).float(), dim=1)
labels = torch.from_numpy(digits.target)
order = torch.randperm(len(X))
train, test = order[:1000], order[1000:]


def fit(coder, learn):
    """Train a classifier on codes, and the dictionary too if ``learn``; the test accuracy."""
    classifier = nn.Linear(24, 10)
    parameters = [*classifier.parameters(), *(coder.parameters() if learn else ())]
    optimizer = torch.optim.Adam(parameters, lr=0.03)
    for step in range(90):
        batch = train[(100 * step) % 1000 :][:100]
        loss = nn.functional.cross_entropy(classifier(10 * coder(X[batch])), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return float((classifier(10 * coder(X[test])).argmax(1) == labels[test]).float().mean())


# %%
# Twenty iterations are enough for codes; the same start with and without learning the atoms.
coder = SparseCoding(atoms=24, features=64, weight=0.02, iterations=20)
random = coder.dictionary.detach().clone()
accuracy = {"random atoms": fit(coder, learn=False), "learned atoms": fit(coder, learn=True)}

# %%
# Unrolled or implicit? At the solution both are the same gradient; the second needs no memory of
# the way there.
gradients = []
for strategy in (lg.Unroll(), lg.Implicit()):
    exact = SparseCoding(24, 64, iterations=3000, tol=1e-10, gradient=strategy).double()
    exact.set_dictionary(coder.dictionary)
    exact(X[:20].double()).square().sum().backward()
    gradients.append(exact.directions.grad)
apart = float((gradients[0] - gradients[1]).norm() / gradients[0].norm())
print({k: f"{v:.1%}" for k, v in accuracy.items()}, f"unrolled and implicit: {apart:.0e} apart")

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for axis, D, name in zip(axes, (random, coder.dictionary.detach()), accuracy, strict=True):
    tiles = nn.functional.pad(D.T.reshape(24, 8, 8), (0, 1, 0, 1), value=torch.nan)
    tiles = tiles.reshape(4, 6, 9, 9).transpose(1, 2).reshape(36, 54)
    axis.imshow(tiles.numpy(), cmap="RdBu", vmin=-0.4, vmax=0.4)
    axis.set_title(f"{name}: {accuracy[name]:.1%} of unseen digits")
    axis.set_axis_off()
assert accuracy["learned atoms"] > accuracy["random atoms"] + 0.02
assert apart < 1e-5
