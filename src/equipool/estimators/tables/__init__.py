"""Tables with one row per element, read as bags."""

from equipool.estimators.tables.bags import TableBags, read_table, read_training_table
from equipool.estimators.tables.schema import Feature, TableSchema
from equipool.estimators.tables.source import TableError

__all__ = [
    "Feature", "TableBags", "TableError", "TableSchema", "read_table", "read_training_table",
]  # fmt: skip
