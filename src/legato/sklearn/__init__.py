"""scikit-learn estimators whose penalties are tuned by hypergradient; needs ``legato[sklearn]``."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "legato.sklearn needs scikit-learn: pip install 'legato[sklearn]'."
    ) from error

from legato.sklearn.estimators import (
    ElasticNetBilevel,
    GroupLassoBilevel,
    LassoBilevel,
    LogisticBilevel,
)
from legato.sklearn.search import OuterPath

__all__ = ["ElasticNetBilevel", "GroupLassoBilevel", "LassoBilevel", "LogisticBilevel", "OuterPath"]
