"""The Potts layer against a maximal flow (two labels) and a linear programme (three)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from legato.nn import Potts
from legato.nn.neighbourhood import Neighbours, offsets
from makers import rand, randn
from truth.test_against_others import HEIGHT, WIDTH, pixel, potts_programme

INSTANCES = 20


def links(neighbours: Neighbours) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    """(direction, pixel, neighbour) of every edge."""
    grid = [(i, j) for i in range(HEIGHT) for j in range(WIDTH)]
    return [
        (k, (i, j), (i + down, j + right))
        for k, (down, right) in enumerate(offsets(2, neighbours))
        for i, j in grid
        if (i + down, j + right) in grid
    ]


def energy(labels: np.ndarray, c: np.ndarray, w: np.ndarray, neighbours: Neighbours) -> int:
    """Data terms plus 2w for every interface: the two labels that meet both have a step there."""
    data = sum(c[labels[i, j], i, j] for i in range(HEIGHT) for j in range(WIDTH))
    return int(data + 2 * sum(w[k][p] for k, p, q in links(neighbours) if labels[p] != labels[q]))


def minimal_cut(c: np.ndarray, w: np.ndarray, neighbours: Neighbours) -> int:
    """The source stands for label 0, the sink for label 1."""
    source, sink = HEIGHT * WIDTH, HEIGHT * WIDTH + 1
    capacity = np.zeros((sink + 1, sink + 1), dtype=np.int32)
    capacity[source, :source] = c[1].reshape(-1)  # cut if the pixel takes label 1
    capacity[:source, sink] = c[0].reshape(-1)
    for k, p, q in links(neighbours):
        capacity[pixel(p), pixel(q)] = capacity[pixel(q), pixel(p)] = 2 * w[k][p]
    return int(maximum_flow(csr_array(capacity), source, sink).flow_value)


@pytest.mark.parametrize("neighbours", [4, 8, ((1, 0), (0, 1), (0, 3), (2, -1), (1, 3))])
def test_two_labels_are_a_minimal_cut(neighbours: Neighbours) -> None:
    """On integers, so that the energies agree exactly or not at all."""
    generator = torch.Generator().manual_seed(0)
    edges = len(offsets(2, neighbours))
    c = torch.randint(0, 1000, (INSTANCES, 2, HEIGHT, WIDTH), generator=generator)
    w = torch.randint(0, 600 // edges, (INSTANCES, edges, HEIGHT, WIDTH), generator=generator)
    layer = Potts(4000, neighbours=neighbours)
    u = layer.solve(c.double() / 1000, w.double().unsqueeze(1) / 1000).x
    coupled = 0
    for u_n, c_n, w_n in zip(u.numpy(), c.numpy(), w.numpy(), strict=True):
        found = energy(u_n.argmax(0), c_n, w_n, neighbours)
        assert found == minimal_cut(c_n, w_n, neighbours)
        coupled += found != energy(c_n.argmin(0), c_n, w_n, neighbours)
    assert coupled >= INSTANCES // 2  # else the data alone would have been enough


@pytest.mark.parametrize("seed", range(10))
def test_three_labels_are_a_linear_programme(seed: int) -> None:
    """Some of these creep along a face for 10⁴ iterations, so it takes a few more."""
    c = randn(3, HEIGHT, WIDTH, seed=100 + seed)
    w = 0.6 * rand(2, HEIGHT, WIDTH, seed=200 + seed)
    output = Potts(30_000).solve(c[None], w[None, None])
    optimum = potts_programme(c.numpy(), w.numpy())
    assert abs(float(output.energy.sum()) - optimum) <= 1e-6
    assert float(output.gap.sum()) <= 1e-6
