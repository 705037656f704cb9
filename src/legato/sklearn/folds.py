"""Which rows train and which validate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv, train_test_split

from legato.errors import InputError
from legato.sklearn.groups import Indices

Split = tuple[Indices, Indices]


def splits(cv: Any, X: Any, y: NDArray[Any], *, classifier: bool, random_state: Any) -> list[Split]:
    """Rows to train on and to validate on, for every fold.

    ``cv`` is a number of folds, a scikit-learn splitter or a list of splits; a share in (0, 1) of
    the rows to hold out, drawn with ``random_state``; or a mask, True for the rows to hold out.
    """
    rows = np.arange(len(y))
    if isinstance(cv, (float, np.floating)):
        return [held_out(float(cv), rows, y, classifier=classifier, random_state=random_state)]
    if _is_mask(cv):
        mask = np.asarray(cv)
        if len(mask) != len(y):
            raise InputError(f"cv is a mask of length {len(mask)}, but there are {len(y)} samples.")
        if mask.all() or not mask.any():
            raise InputError("cv is a mask that leaves no row to train on, or none to validate on.")
        return [(rows[~mask], rows[mask])]
    if isinstance(cv, (bool, np.bool_)):
        raise InputError("cv must be a number of folds, a splitter, a share or a mask, not a bool.")
    found = [
        (np.asarray(train, dtype=np.intp), np.asarray(test, dtype=np.intp))
        for train, test in check_cv(cv, y, classifier=classifier).split(X, y)
    ]
    if any(len(train) == 0 or len(test) == 0 for train, test in found):
        raise InputError("A split of cv leaves no row to train on, or none to validate on.")
    return found


def _is_mask(cv: Any) -> bool:
    if isinstance(cv, np.ndarray):
        return bool(cv.dtype == np.bool_ and cv.ndim == 1)
    return isinstance(cv, list) and all(isinstance(x, (bool, np.bool_)) for x in cv)


def held_out(
    share: float, rows: Indices, y: NDArray[Any], *, classifier: bool, random_state: Any
) -> Split:
    """A random part of the rows held out; by class where every class has two or more rows."""
    if not 0 < share < 1:
        raise InputError(f"The share of rows to hold out must lie in (0, 1), not {share!r}.")
    stratify = (
        y[rows] if classifier and np.unique(y[rows], return_counts=True)[1].min() > 1 else None
    )
    seed = 0 if random_state is None else random_state
    rest, held = train_test_split(rows, test_size=share, random_state=seed, stratify=stratify)
    return np.sort(rest), np.sort(held)
