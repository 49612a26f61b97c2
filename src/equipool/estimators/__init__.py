"""scikit-learn's conventions for bags of vectors."""

from equipool.extras import check_extras

check_extras(
    "equipool.estimators",
    {"estimators": ["sklearn"], "train": ["lightning", "safetensors"]},
)

from equipool.estimators.bags import Bags, read_bags  # noqa: E402
from equipool.estimators.classifier import SetClassifier  # noqa: E402
from equipool.estimators.network import BagNetwork  # noqa: E402
from equipool.estimators.regressor import SetRegressor  # noqa: E402
from equipool.estimators.saving import load  # noqa: E402
from equipool.estimators.transformers import BagScaler, BagStatistics  # noqa: E402

__all__ = [
    "BagNetwork", "BagScaler", "BagStatistics", "Bags", "SetClassifier", "SetRegressor", "load",
    "read_bags",
]  # fmt: skip
