"""
One penalty or many?
====================

A lasso with one penalty for each source or each feature, tuned by cross-validation.

The lasso has one penalty for all features. ``legato.sklearn`` finds that one with the slope of the
cross-validation loss instead of a grid, and then one for every group, or every feature. The data:
diabetes with forty columns of noise added.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LassoCV
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from legato.sklearn import LassoBilevel

X, y = load_diabetes(return_X_y=True)
noise = np.random.default_rng(0).standard_normal((len(y), 40))
X = StandardScaler().fit_transform(np.column_stack([X, noise]))
X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
sources = ["measured"] * 10 + ["noise"] * 40

# %%
# Everything else is scikit-learn as usual.
models = {
    "LassoCV": LassoCV(cv=5),
    "one penalty": LassoBilevel(),
    "one a source": LassoBilevel(groups=sources, max_iter=50),
    "one a feature": LassoBilevel(
        per_feature=True, early_stopping=0.2, max_iter=50, random_state=0
    ),
}
validation, test = {}, {}
for name, model in models.items():
    model.fit(X, y)
    if name == "LassoCV":
        validation[name] = float(model.mse_path_.mean(1).min())
    else:
        validation[name] = float(model.path_.loss[model.path_.chosen])
    test[name] = float(np.mean((model.predict(X_test) - y_test) ** 2))
    kept = f"{(model.coef_[:10] != 0).sum()} of 10 measured, {(model.coef_[10:] != 0).sum()} noise"
    print(f"{name:14s} validation {validation[name]:.1f}, test {test[name]:.1f}; features: {kept}")
found = dict(zip(models["one a source"].groups_, models["one a source"].alpha_, strict=True))
print("Penalties found:", ", ".join(f"{k} {v:.3g}" for k, v in found.items()))

# %%
# One penalty has to be large enough for the noise, and so shrinks what was measured. With one for
# each source, the noise goes and the measurements stay.
figure, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained", sharey=True)
for axis, (name, model) in zip(axes.flat, models.items(), strict=True):
    axis.stem(model.coef_, basefmt=" ")
    axis.axvspan(9.5, 49.5, color="0.92", zorder=-1)
    axis.set(title=f"{name}, test {test[name]:.0f}", xlabel="feature (grey: noise)")
axes[0, 0].set_ylabel("coefficient")
axes[1, 0].set_ylabel("coefficient")
assert validation["one penalty"] <= validation["LassoCV"] * (1 + 1e-6)
assert validation["one a source"] < validation["one penalty"]
assert not models["one a source"].coef_[10:].any()  # all noise is out
assert test["one a feature"] < test["LassoCV"]
