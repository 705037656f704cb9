r"""
A segmentation layer after a small network
==========================================

A network guesses pixel by pixel; the layer makes neighbours agree unless there is an edge.

It solves the Potts problem with costs c = −score: a label that the network likes is cheap.

.. math:: \min_{u ∈ Δ}\; ⟨c, u⟩ + ‖W∇u‖₁

It returns log-probabilities, and passes the gradient on: scores and edge weights learn together.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from legato.nn import ContrastWeights, Potts

torch.manual_seed(0)


def draw(count, size=40):
    """Two discs on a background, in three colours that noise nearly drowns."""
    grid = torch.stack(torch.meshgrid(*[torch.arange(size)] * 2, indexing="ij"))
    labels = torch.zeros(count, size, size, dtype=torch.long)
    for label in (1, 2):
        centre = torch.randint(8, size - 8, (count, 2, 1, 1))
        radius = torch.randint(7, 13, (count, 1, 1))
        labels[((grid - centre) ** 2).sum(1) < radius**2] = label
    colours = torch.tensor([[0.3, 0.4, 0.5], [0.6, 0.4, 0.3], [0.4, 0.6, 0.4]])
    return colours[labels].permute(0, 3, 1, 2) + 0.25 * torch.randn(count, 3, size, size), labels


class Segmenter(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.scores = nn.Conv2d(3, 3, 3, padding=1)
        self.weights = ContrastWeights(beta=0.5, kappa=2.0)
        self.layer = Potts(iterations=40) if layer else None

    def forward(self, image):
        scores = self.scores(image)
        if self.layer is None:
            return scores.log_softmax(1)
        return self.layer(-scores, self.weights(image))  # cost = −score


# %%
# The same training with and without the layer.
images, labels = draw(40)
accuracy, guesses = {}, {}
for name, layer in (("network", False), ("network + Potts", True)):
    torch.manual_seed(1)
    model = Segmenter(layer)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        batch, truth = draw(4)
        loss = nn.functional.nll_loss(model(batch), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    guesses[name] = model(images).argmax(1)
    accuracy[name] = float((guesses[name] == labels).float().mean())

# %%
# On forty new pictures.
figure, axes = plt.subplots(1, 4, figsize=(10, 3), layout="constrained")
shown = {"image": images[0].permute(1, 2, 0).clamp(0, 1), "truth": labels[0]}
shown |= {f"{name}, {accuracy[name]:.1%}": guess[0] for name, guess in guesses.items()}
for axis, (name, image) in zip(axes, shown.items(), strict=True):
    axis.imshow(image.numpy(), interpolation="nearest")
    axis.set(title=name, xticks=[], yticks=[])
print({name: f"{score:.1%}" for name, score in accuracy.items()})
assert accuracy["network + Potts"] > accuracy["network"] + 0.03
