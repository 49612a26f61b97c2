"""scikit-learn's conventions for bags of vectors."""

from equipool.extras import check_extras

check_extras(
    "equipool.estimators",
    {"estimators": ["sklearn", "pyarrow", "safetensors"]},
)

from equipool.estimators.bags import Bags, as_bags, from_anndata, make_bags  # noqa: E402
from equipool.estimators.classifier import SetClassifier  # noqa: E402
from equipool.estimators.regressor import SetRegressor  # noqa: E402
from equipool.estimators.saving import load  # noqa: E402
from equipool.estimators.tables import TableSchema, write_table  # noqa: E402
from equipool.estimators.training import BagNetwork  # noqa: E402
from equipool.estimators.transformers import BagScaler, BagStatistics  # noqa: E402
from equipool.tables import TableError  # noqa: E402

__all__ = [
    "BagNetwork",
    "BagScaler",
    "BagStatistics",
    "Bags",
    "SetClassifier",
    "SetRegressor",
    "TableError",
    "TableSchema",
    "as_bags",
    "from_anndata",
    "load",
    "make_bags",
    "write_table",
]  # fmt: skip
