"""scikit-learn estimators whose penalties are tuned by hypergradient; needs ``legato[sklearn]``."""

from legato._support.extras import needs_extra

with needs_extra("legato.sklearn", "sklearn"):
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
