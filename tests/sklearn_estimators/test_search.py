"""The walk over one penalty: where it ends, and that its minimum is found all the same."""

import pytest

from legato.sklearn.search import CurveSearch

GRID = [float(-i) for i in range(12)]


def walk(values, hard=True):
    """The points that a walk along ``values`` looks at, from the first on."""
    told = dict(zip(GRID, values, strict=True))
    search = CurveSearch(lambda x, state: (told[x], 0.0, None, hard), tol=1e-7, most=10)
    return [point.f for point in reversed(search.coarse(GRID))]


VALLEY = [9, 7, 5, 4, 3.9, 4, 4.1, 4.2, 4.3, 4.4, 4.5, 4.6]


def test_a_walk_ends_once_the_loss_has_risen_a_few_times():
    assert walk(VALLEY) == VALLEY[:8]  # three rises after 3.9, to 8 % above it


def test_a_walk_of_easy_points_goes_to_its_end():
    assert walk(VALLEY, hard=False) == VALLEY


def test_rises_of_less_than_a_percent_are_a_plateau():
    flat = [9, 7, 5, 4, *(4 + 0.004 * i for i in range(1, 9))]  # 0.8 % in all
    assert walk(flat) == flat


def test_a_ripple_does_not_end_a_walk():
    ripples = [9, 7, 5, 5.2, 5.3, 4, 4.2, 4.3, 3, 3.1, 3.2, 2]
    assert walk(ripples) == ripples


@pytest.mark.parametrize("centre", [-2.3, -4.5, -7.9])
def test_the_minimum_is_found_where_the_walk_ended_early(centre):
    looked = []

    def curve(x, state):
        looked.append(x)
        return 1 + (x - centre) ** 2, 2 * (x - centre), None, True

    search = CurveSearch(curve, tol=1e-9, most=60)
    points = search.coarse(GRID)
    assert looked[-1] == pytest.approx(centre - 3, abs=1)  # not the whole grid
    assert search.refine(points).x == pytest.approx(centre, abs=1e-4)
