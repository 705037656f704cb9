"""scikit-learn estimators whose penalties are tuned by hypergradient; needs ``legato[sklearn]``."""

from legato._support.extras import needs_extra

with needs_extra("legato.sklearn", "sklearn"):
    from legato.sklearn.estimators import (
        ElasticNetBilevel,
        GroupLassoBilevel,
        LassoBilevel,
        LogisticBilevel,
        RidgeBilevel,
    )
    from legato.sklearn.search import OuterPath

__all__ = [
    "ElasticNetBilevel",
    "GroupLassoBilevel",
    "LassoBilevel",
    "LogisticBilevel",
    "OuterPath",
    "RidgeBilevel",
]
