"""scikit-learn estimators whose penalties are tuned by hypergradient; needs ``legato[sklearn]``."""

from legato.sklearn.classification import LogisticBilevel
from legato.sklearn.path import OuterPath
from legato.sklearn.regression import ElasticNetBilevel, GroupLassoBilevel, LassoBilevel

__all__ = [
    "ElasticNetBilevel",
    "GroupLassoBilevel",
    "LassoBilevel",
    "LogisticBilevel",
    "OuterPath",
]
