"""A constant added to the target moves the intercept and nothing else, however large it is."""

import numpy as np
import pytest

from legato.sklearn import ElasticNetBilevel, LassoBilevel


@pytest.mark.parametrize("estimator", [LassoBilevel, ElasticNetBilevel])
@pytest.mark.parametrize("shift", [1e3, 1e6])
def test_a_shift_of_the_target(estimator, shift):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 30))
    y = X[:, :3] @ np.array([1.0, -2.0, 0.5]) + 2 * rng.standard_normal(60)
    plain, moved = (estimator(cv=3).fit(X, target) for target in (y, y + shift))
    assert moved.intercept_ - plain.intercept_ == pytest.approx(shift, rel=1e-9)
    np.testing.assert_allclose(moved.coef_, plain.coef_, atol=1e-4)
    assert plain.path_.reason
