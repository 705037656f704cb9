"""Where lower-level solves begin: at x0 first, at the last solution later."""

import torch

import legato as lg


def test_the_first_solve_begins_at_x0_and_the_next_at_its_solution():
    """½(x − 3)² with steps of ½: after one iteration x = (x0 + 3)/2."""
    inner = lg.bilevel.InnerSolver()
    algorithm, once = lg.ForwardBackward(0.5), lg.Stop(1)
    x0 = torch.tensor([11.0])
    found = []
    for _ in range(3):
        inner.begin()
        energy = lg.SquaredDistance(torch.tensor([3.0]))
        solution = inner.solve(energy, algorithm, x0, gradient=lg.Implicit(), stop=once)
        found.append(float(solution.x))
    assert found == [7.0, 5.0, 4.0]
    assert inner.iterations == 3


def test_strategies_that_differentiate_the_path_begin_at_x0_every_time():
    inner = lg.bilevel.InnerSolver()
    for _ in range(2):
        inner.begin()
        energy = lg.SquaredDistance(torch.tensor([3.0]))
        solution = inner.solve(
            energy,
            lg.ForwardBackward(0.5),
            torch.tensor([11.0]),
            gradient=lg.Unroll(),
            stop=lg.Stop(1),
        )
        assert float(solution.x) == 7.0
