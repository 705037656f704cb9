"""What the solver of the lower level measures by, takes first and counts."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from legato.sklearn.criterion import Criterion
from legato.sklearn.design import Columns, Design
from legato.sklearn.lower_level import LowerLevel, Squares
from legato.sklearn.penalties import Groups, Penalties, Weights


def level_of(X, y):
    groups = Groups.singletons(X.shape[1])
    design = Design(X, np.full(len(y), 1 / len(y)), groups, centre=True)
    return LowerLevel(Columns(design), y, Squares(), groups, intercept=True)


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_violations_are_measured_by_the_deviation_of_the_target(shift):
    """Where the target is shifted, residuals would else be accepted that are as large as it."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 5)), rng.standard_normal(40)
    assert level_of(X, y + shift).size == pytest.approx(np.std(y), rel=1e-6)


def test_a_working_set_takes_the_features_that_violate_optimality_most():
    """At w = 0 these are the ones that correlate most with the target."""
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((50, 300)), rng.standard_normal(50)
    level, none = level_of(X, y), Weights(np.zeros(300), np.zeros(300))
    at_zero = level._examine(np.zeros(300), level.null, level.scaled(none), 0)
    taken = level._grown(at_zero, none)
    correlation = [abs(np.corrcoef(column, y)[0, 1]) for column in X.T]
    assert set(taken) == set(np.argsort(correlation)[-100:])


def test_solves_that_failed_are_counted_among_all():
    penalties = Penalties(Groups.singletons(1), np.zeros(1, dtype=int), 1, np.ones(1))
    criterion = Criterion([], penalties)
    for residual in 1e-14, 0.5, 1e-14:
        criterion.stats.note(residual, 1.0)
    with pytest.warns(ConvergenceWarning, match="1 of 3 lower-level solves .* largest: 5.0e-01"):
        criterion.report(np.zeros(1))
