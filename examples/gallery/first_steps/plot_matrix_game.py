r"""
Guessing stakes from how people play
====================================

How often each hand is shown tells what winning with it must pay.

Rock, paper, scissors, but with unequal stakes. Two players who reason, and err a little, play the
equilibrium

.. math:: \min_{x ∈ Δ} \max_{y ∈ Δ}\; x^⊤Ay + ε \textstyle\sum x \log x − ε \sum y \log y

We see how often each hand is shown, in thirty rooms where the house adds a known bonus to one
outcome, and learn the three unknown stakes by differentiating the equilibrium.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.nn import MatrixGame

torch.manual_seed(0)
stakes = torch.tensor([1.0, 2.5, 0.5], dtype=torch.float64)  # of rock, paper, scissors
beats = torch.zeros(3, 3, 3, dtype=torch.float64)  # what the row player pays, a matrix a stake
for hand in range(3):
    beats[hand, (hand - 1) % 3, hand], beats[hand, hand, (hand - 1) % 3] = 1, -1
bonus = torch.zeros(30, 3, 3, dtype=torch.float64)
bonus[torch.arange(30), torch.randint(3, (30,)), torch.randint(3, (30,))] = 1.0


def payoffs(stakes):
    return torch.einsum("h,hij->ij", stakes, beats) + bonus


# %%
# Five hundred rounds are watched in each room.
game = MatrixGame(epsilon=0.3, iterations=100, gradient=lg.Implicit())
equilibrium = game(payoffs(stakes))  # the strategies of both players
rounds = [torch.distributions.Multinomial(500, p).sample() / 500 for p in equilibrium]

# %%
# The likelihood of what was seen, as a function of the stakes, and eighty steps along its slope.
theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([theta], lr=0.15)
path = []
for _ in range(80):
    path.append(theta.detach().exp())
    played = game(payoffs(theta.exp()))
    loss = -sum((n * p.log()).sum() for n, p in zip(rounds, played, strict=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
learned = theta.detach().exp()

figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
for hand, (name, colour) in enumerate((("rock", "C0"), ("paper", "C1"), ("scissors", "C2"))):
    axes[0].plot([float(p[hand]) for p in path], color=colour, label=name)
    axes[0].axhline(float(stakes[hand]), color=colour, linestyle=":")
    axes[1].scatter(played[0][:, hand].detach(), rounds[0][:, hand], color=colour, s=12)
axes[0].set(xlabel="step", ylabel="stake", title="learned stakes (dotted: the truth)")
axes[0].legend()
axes[1].axline((0.3, 0.3), slope=1, color="0.7", zorder=-1)
axes[1].set(xlabel="predicted frequency of a hand", ylabel="seen", title="thirty rooms, row player")
print("stakes", stakes.tolist(), "learned", [round(s, 2) for s in learned.tolist()])
assert float((learned - stakes).abs().max()) < 0.15
