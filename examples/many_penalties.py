"""One penalty or many? Diabetes with forty columns of noise added.

The lasso has one penalty for all features. `legato.sklearn` finds that one with the slope of the
cross-validation loss instead of a grid, and then one for every group, or every feature.
Usage: python examples/many_penalties.py
"""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LassoCV
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from legato.sklearn import LassoBilevel


def data() -> tuple[np.ndarray, ...]:
    X, y = load_diabetes(return_X_y=True)
    noise = np.random.default_rng(0).standard_normal((len(y), 40))
    X = StandardScaler().fit_transform(np.column_stack([X, noise]))
    return train_test_split(X, y, test_size=0.4, random_state=0)


def main() -> dict[str, tuple[float, float]]:
    X, X_test, y, y_test = data()
    sources = ["measured"] * 10 + ["noise"] * 40
    models = {
        "LassoCV": LassoCV(cv=5),
        "one penalty": LassoBilevel(),
        "one a source": LassoBilevel(groups=sources, max_iter=50),
        "one a feature": LassoBilevel(per_feature=True, early_stopping=0.2, max_iter=50),
    }
    results = {}
    for name, model in models.items():
        model.fit(X, y)
        if name == "LassoCV":
            validation = model.mse_path_.mean(1).min()
        else:
            validation = model.path_.loss[model.path_.chosen]
        test = np.mean((model.predict(X_test) - y_test) ** 2)
        results[name] = (float(validation), float(test))
        kept = (
            f"{(model.coef_[:10] != 0).sum()} of 10 measured, {(model.coef_[10:] != 0).sum()} noise"
        )
        print(f"{name:14s} validation {validation:7.1f}   test {test:7.1f}   features: {kept}")
    chosen = dict(zip(models["one a source"].groups_, models["one a source"].alpha_, strict=True))
    print("Penalties found:", ", ".join(f"{k} {v:.3g}" for k, v in chosen.items()))
    return results


if __name__ == "__main__":
    main()
