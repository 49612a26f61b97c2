"""scikit-learn's conventions for bags of vectors."""

from equipool.estimators.network import BagNetwork

__all__ = ["BagNetwork"]
