"""What a statistician expects: class weights, precision kept, data out of range refused, priors."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import make_classification

from legato.errors import InputError
from legato.sklearn import LassoBilevel, LogisticBilevel

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 8))
Y = X[:, 0] - 0.5 * X[:, 1] + 0.3 * RNG.standard_normal(60)


def test_class_weights_are_sample_weights():
    data, labels = make_classification(120, 6, weights=[0.8], random_state=0)
    share = np.where(labels == 1, 3.0, 1.0)
    by_class = LogisticBilevel(cv=3, class_weight={0: 1.0, 1: 3.0}).fit(data, labels)
    by_sample = LogisticBilevel(cv=3).fit(data, labels, sample_weight=share)
    np.testing.assert_allclose(by_class.coef_, by_sample.coef_, rtol=1e-9, atol=1e-12)
    balanced = LogisticBilevel(cv=3, class_weight="balanced").fit(data, labels)
    plain = LogisticBilevel(cv=3).fit(data, labels)
    assert balanced.predict(data).mean() > plain.predict(data).mean()


def test_single_precision_is_kept():
    for model, target in ((LassoBilevel(cv=3), Y), (LogisticBilevel(cv=3), Y > 0)):
        single = model.fit(X.astype(np.float32), target)
        assert single.coef_.dtype == np.float32
        assert single.predict(X.astype(np.float32)).shape == (60,)
        exact = type(model)(cv=3).fit(X.astype(np.float32).astype(float), target)
        np.testing.assert_allclose(single.coef_, exact.coef_, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*encountered in reduce")  # of scikit-learn's own check
@pytest.mark.parametrize("scale", [1e308, 1e160, 1e-200])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_matrix])
def test_numbers_without_squares_are_refused(scale, convert):
    data = convert(np.clip(X, -1, 1) * scale)
    for model in (LassoBilevel(cv=3), LogisticBilevel(cv=3)):
        with pytest.raises(InputError, match="squares over- or underflow"):
            model.fit(data, Y > 0 if isinstance(model, LogisticBilevel) else Y)
    with pytest.raises(InputError, match="y has entries"):
        LassoBilevel(cv=3).fit(X, 1e200 * Y)


def test_a_prior_keeps_many_penalties_together():
    spread = []
    for prior in (np.inf, 1.0, 0.05):
        model = LassoBilevel(cv=3, per_feature=True, prior=prior, max_iter=20).fit(X, Y)
        spread.append(np.log(model.alpha_).std())
    assert spread[0] > 1.5 * spread[1] > 0
    assert spread[2] < 0.3 * spread[1]
    default = LassoBilevel(cv=3, per_feature=True, max_iter=20).fit(X, Y)
    given = LassoBilevel(cv=3, per_feature=True, max_iter=20, prior=0.5).fit(X, Y)
    np.testing.assert_array_equal(default.alpha_, given.alpha_)
    with pytest.raises(InputError, match="prior must be"):
        LassoBilevel(prior=-1.0).fit(X, Y)
