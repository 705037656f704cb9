r"""
Write your own geometry
=======================

A geometry is a way to measure distance, given by four maps.

They are those of a Legendre function ψ. This one lives on (−1, 1),

.. math:: ψ(x) = −\textstyle\sum\sqrt{1 − x_i²}, \quad ∇ψ(x) = x/\sqrt{1 − x²}, \quad
          ∇ψ^*(y) = y/\sqrt{1 + y²}

so that a step in it can never leave the box. Near an end it moves like 1/n², where the interval
geometry's tanh moves like e⁻ⁿ and projected steps arrive at once.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.testing import check_geometry


@dataclass(frozen=True, eq=False, repr=False)
class Hellinger(lg.Geometry):
    def value(self, x):
        return -torch.sqrt(1 - x * x).sum()

    def mirror(self, x):
        return x / torch.sqrt(1 - x * x)

    def unmirror(self, y):
        return y / torch.sqrt(1 + y * y)

    def interior(self, x):
        return x.abs() < 1


@lg.register_prox(lg.Box, Hellinger)
def box_prox(g, geometry, y, alpha):
    return y  # the domain is the box [−1, 1]: nothing to do


# %%
# Does it keep the laws? The two maps are inverse, ∇ψ is the gradient of ψ, distances are positive.
torch.manual_seed(0)
psi = Hellinger()
print(check_geometry(psi, 1.8 * torch.rand(5).double() - 0.9))

# %%
# Three geometries on one problem, least squares in a box, and the derivative of each solution.
A, b = torch.randn(6, 4).double(), 3 * torch.randn(6).double()
step = 1 / float(torch.linalg.matrix_norm(A, 2)) ** 2  # ψ'' ≥ 1 in all three
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained", sharey=True)
solutions, slopes = [], []
for axis, geometry in zip(axes, (lg.Euclidean(), lg.Interval(-1.0, 1.0), psi), strict=True):
    matrix = A.clone().requires_grad_()
    problem = lg.Composite(lg.LeastSquares(matrix, b), lg.Box(-1.0, 1.0))
    algorithm, state, path = lg.ForwardBackward(step, geometry), torch.zeros(4).double(), []
    for _ in range(60):
        solution = lg.solve(problem, algorithm, state, stop=lg.Stop(1))
        state = solution.state
        path.append(solution.x.detach())
    axis.plot(torch.stack(path))
    axis.set(title=repr(geometry), xlabel="iteration")
    solution = lg.solve(problem, algorithm, torch.zeros(4).double(), stop=lg.Stop(3000))
    solution.x.square().sum().backward()
    solutions.append(solution.x.detach())
    slopes.append(matrix.grad)
apart = [float((s - slopes[0]).norm() / slopes[0].norm()) for s in slopes]
print("derivatives apart from the Euclidean one:", [f"{a:.0e}" for a in apart])
assert int((solutions[0].abs() == 1).sum()) >= 1  # some entries end on the boundary
assert apart[1] < 1e-8
assert apart[2] < 1e-2  # 1/n² is slow
