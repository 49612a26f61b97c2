"""Methods with which an estimator trains on tables and predicts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from equipool.estimators.bags import Bags
from equipool.estimators.schema import TableSchema, Unknown
from equipool.estimators.tables import TableBags, read_table, read_training_table
from equipool.settings import check
from equipool.tables import TableError, number_from


class TableMethods:
    """`fit_table`, `predict_table` and `influence_table` of an estimator."""

    table_schema_: TableSchema  # of the table it was trained on, if it was one

    def fit_table(
        self, table: Any, *, bag: str, label: str | Sequence[str],
        features: Sequence[str] | None = None, exclude: Sequence[str] = (),
        categories: Sequence[str] = (), missing: Literal["error", "mean"] = "error",
        weight: str | None = None,
    ) -> Self:  # fmt: skip
        """Train on a table with one row per element, in any order.

        Args:
            table: the path of a CSV file, of a gzipped one or of a Parquet file; or a table of
                pyarrow, or a data frame of pandas or polars.
            bag: column that names the bag of each element.
            label: column of the label, or several columns of numbers. A label must be the same in
                all rows of a bag.
            features: columns that describe the elements. Default: all that are left. A column of
                text becomes one number per category, 1 for the row's own and 0 otherwise.
            exclude: columns that are not features.
            categories: columns of numbers to read as categories.
            missing: `"error"`, or `"mean"` to replace missing numbers with the column's mean; a
                missing category is then zero for every category.
            weight: column of the bags' weights.
        """
        check("missing", missing, Literal["error", "mean"])
        schema, found = read_training_table(
            table, bag=bag, label=label, features=features, exclude=exclude, categories=categories,
            missing=missing, weight=weight,
        )  # fmt: skip
        fit_bags(self, schema, found)
        return self

    def predict_table(self, table: Any, *, unknown: Unknown = "error") -> pa.Table:
        """Predict the bags of a table, which needs the columns of the training table except for the
        labels.

        Args:
            table: as in `fit_table`.
            unknown: `"error"`, or `"ignore"` to read a category that training did not have as none
                of those it had.

        Returns:
            One row per bag, in the order in which the bags first appear: the bag, `predicted_LABEL`
            for each label column, and a classifier's probabilities; of several labels a classifier
            gives the probabilities alone. `to_pandas()` makes it a data frame.
        """
        found = self._read_table(table, unknown)
        return pa.table({self.table_schema_.bag: found.ids} | self._predicted_columns(found.bags))

    def influence_table(
        self, table: Any, *, bags: Iterable[str] | None = None, unknown: Unknown = "error"
    ) -> pa.Table:
        """What each element of a table contributes to the prediction of its bag: the
        `decision_function`, or the number predicted, with the element minus that without it.

        Args:
            table: as in `predict_table`.
            bags: those to explain. Default: all.
            unknown: as in `predict_table`.

        Returns:
            One row per element, in each bag the strongest first: its bag, its row in the table
            (from 0), and its `influence`, or `influence on NAME` for more than two classes or
            several labels.
        """
        found = self._read_table(table, unknown)
        model: Any = self
        numbers = range(len(found.ids)) if bags is None else [found.number(bag) for bag in bags]
        ids, rows, parts = [], [], []
        for number in numbers:
            (influence,) = model.influence(found.bags[number : number + 1])
            columns = influence.reshape(len(influence), -1)
            strongest = np.argsort(-np.abs(columns).max(1), kind="stable")
            ids += [found.ids[number]] * len(columns)
            rows.append(found.rows[found.bags.ptr[number] : found.bags.ptr[number + 1]][strongest])
            parts.append(columns[strongest])
        values = np.concatenate(parts)
        labels = self.table_schema_.labels
        names: Sequence[Any] = labels if len(labels) > 1 else getattr(self, "classes_", labels)
        titles = [f"influence on {name}" for name in names]
        return pa.table(
            {self.table_schema_.bag: ids, "row": np.concatenate(rows)}
            | dict(zip(["influence"] if values.shape[1] == 1 else titles, values.T, strict=True))
        )

    def _read_table(self, table: Any, unknown: Unknown) -> TableBags:
        check_is_fitted(self)
        if not hasattr(self, "table_schema_"):
            raise ValueError("the model was not trained on a table: use predict instead")
        return read_table(table, self.table_schema_, unknown=unknown)

    def _predicted_columns(self, bags: Bags) -> dict[str, Any]:
        model: Any = self
        labels = self.table_schema_.labels
        if not is_classifier(self):
            values = model.predict(bags).reshape(len(bags), len(labels))
            return {f"predicted_{label}": values[:, column] for column, label in enumerate(labels)}
        several = len(labels) > 1
        columns = model.predict_proba(bags).T
        found = {} if several else {f"predicted_{labels[0]}": model.classes_[columns.argmax(0)]}
        titles = [f"probability of {name}" for name in (labels if several else model.classes_)]
        return found | dict(zip(titles, columns, strict=True))


def fit_bags(estimator: Any, schema: TableSchema, found: TableBags) -> None:
    """Train an estimator on a table that `read_training_table` has read."""
    y = found.y
    if not is_classifier(estimator) and y is not None and y.dtype.kind not in "if":
        numbers = np.array([number_from(one) for one in y])
        if not (finite := np.isfinite(numbers)).all():
            text = str(y[finite.argmin()])
            raise TableError(
                f"column {schema.labels[0]!r} has text such as {text!r}: a regressor needs numbers"
            )
        y = numbers  # whole ones that are too large for int64
    estimator.fit(found.bags, y, sample_weight=found.weight)
    estimator.table_schema_ = schema
