"""Bags of vectors in every form a user may have them, all read into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import _check_n_features, validate_data

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Bags(Sequence[Array]):
    """Bags side by side in one array. A sequence of `[n_i, d]` arrays; slices and arrays of
    positions give `Bags`.

    Example:
        >>> bags = as_bags([[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]])
        >>> bags.sizes
        array([2, 0, 1])
        >>> bags[2]
        array([[5., 6.]])
    """

    elements: Array
    """`[N, d]` float32 or float64."""

    ptr: Array
    """`[B + 1]` where each bag begins and ends."""

    names: tuple[str, ...] | None = None
    """The features' names, if the input had some."""

    @property
    def sizes(self) -> Array:
        """`[B]` the number of elements of each bag."""
        return np.diff(self.ptr)

    @property
    def num_features(self) -> int:
        return int(self.elements.shape[1])

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @overload
    def __getitem__(self, at: int) -> Array: ...

    @overload
    def __getitem__(self, at: slice | Array | list[int]) -> Bags: ...

    def __getitem__(self, at: int | slice | Array | list[int]) -> Array | Bags:
        if isinstance(at, slice | np.ndarray | list):
            return self.take(np.arange(len(self))[at])
        position = range(len(self))[at]
        return self.elements[self.ptr[position] : self.ptr[position + 1]]

    def __iter__(self) -> Iterator[Array]:
        return (self[position] for position in range(len(self)))

    def take(self, positions: Array) -> Bags:
        """The bags at these positions."""
        sizes = self.sizes[positions]
        ptr = _offsets(sizes)
        rows = np.arange(ptr[-1]) + np.repeat(self.ptr[positions] - ptr[:-1], sizes)
        return Bags(self.elements[rows], ptr, self.names)


def as_bags(X: Any) -> Bags:
    """Read bags in any form.

    | X | bags |
    |---|---|
    | list, tuple or object array of `[n_i, d]` arrays, lists, tensors or data frames | each item |
    | 3-D array `[B, n, d]` | each row, all of one size |
    | awkward array `[B, var, d]` | each item |
    | jagged nested tensor `[B, j, d]` | each item |
    | 2-D array `[B, d]`, data frame, list of rows | one element each |

    Bags may be empty. All values must be finite.
    """
    if isinstance(X, Bags):
        return X
    if isinstance(X, torch.Tensor):
        return _from_tensor(X)
    if type(X).__module__.split(".")[0] == "awkward":
        X = list(X)
    objects = isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1
    if isinstance(X, list | tuple) or objects:
        if len(X) == 0:
            raise ValueError("X is empty, expected at least one bag")
        items = [as_array(item) for item in X]
        if any(item.ndim >= 2 for item in items):
            return _checked(_from_items(items, _names_of(X)))
    dense = X if hasattr(X, "shape") and not isinstance(X, np.ndarray) else as_array(X)
    if getattr(dense, "ndim", 0) == 3:
        rows = np.asarray(dense)
        ptr = np.arange(len(rows) + 1) * rows.shape[1]
        return _checked(Bags(_as_floats(rows.reshape(-1, rows.shape[2])), ptr))
    columns = {"X": dense} if isinstance(dense, np.ndarray) else {}
    if hasattr(X, "columns"):
        columns = {f"column {name!r} of X": np.asarray(X[name]) for name in X.columns}
    for name, column in columns.items():
        if column.dtype.kind in "iuMm":
            _as_floats(column, name)  # or refuse it
    # scikit-learn's own checks and messages for what it knows itself
    rows = check_array(X, dtype=[np.float64, np.float32], ensure_min_samples=0, input_name="X")
    return Bags(rows, np.arange(len(rows) + 1), _names_of([X]))


def as_array(item: Any) -> Array:
    if isinstance(item, torch.Tensor):
        return item.detach().cpu().numpy()
    try:
        return np.asarray(item)
    except ValueError:  # lists of different lengths
        return np.asarray(item, dtype=object)


def _from_tensor(X: torch.Tensor) -> Bags:
    if not X.is_nested:
        return as_bags(as_array(X))
    if X.layout != torch.jagged or X.dim() != 3:
        raise ValueError("X is a nested tensor, expected a jagged one of shape [B, j, d]")
    nested: Any = X
    return _checked(Bags(_as_floats(as_array(nested.values())), as_array(nested.offsets())))


def _from_items(items: list[Array], names: tuple[str, ...] | None) -> Bags:
    sizes = [item.shape[1] for item in items if item.ndim == 2 and item.size]
    width = sizes[0] if sizes else max(item.shape[-1] for item in items if item.ndim == 2)
    parts = []
    for position, item in enumerate(items):
        if item.size == 0:
            item = np.zeros((0, width))
        if item.ndim != 2:
            raise ValueError(
                f"bag {position} of X has shape {list(item.shape)}, expected [n, {width}]: one row "
                "per element"
            )
        if item.shape[1] != width:
            raise ValueError(
                f"bag {position} of X has {item.shape[1]} features, but the bags before it have "
                f"{width}"
            )
        parts.append(_as_floats(item, f"bag {position} of X"))
    empty = [part for part in parts if len(part)] or parts[:1]
    elements = np.concatenate(empty)
    return Bags(elements, _offsets(np.array([len(part) for part in parts])), names)


def _as_floats(values: Array, name: str = "X") -> Array:
    """float32 stays, every other number becomes float64."""
    if values.dtype == np.float32:
        return values
    if values.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} has dtype {values.dtype}")
    if values.dtype.kind in "Mm":
        raise ValueError(
            f"{name} has dates of dtype {values.dtype}, expected numbers: pass seconds, "
            "(dates - dates.min()) / np.timedelta64(1, 's')"
        )
    whole = values.dtype.kind in "iu" and values.size > 0
    if whole and max(int(values.max()), -int(values.min())) > 2**53:
        raise ValueError(
            f"{name} has whole numbers beyond 2^53, which float64 cannot tell apart: subtract an "
            "offset, or leave out ids"
        )
    try:
        return values.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} has values that are not numbers: {error}") from None


def _checked(bags: Bags) -> Bags:
    """Name the first value that is not finite."""
    if bags.num_features == 0:
        raise ValueError("the bags of X have 0 features, while a minimum of 1 is required")
    # A sum is finite unless a value is not, or it overflows: cheap, and no copy.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(bags.elements.sum(dtype=np.float64)):
            return bags
    bad = np.argwhere(~np.isfinite(bags.elements))
    if len(bad):
        row, feature = bad[0]
        bag = int(np.searchsorted(bags.ptr, row, side="right")) - 1
        value = bags.elements[row, feature]
        found = "NaN" if np.isnan(value) else "infinity"
        raise ValueError(
            f"Input X contains {found}: bag {bag}, element {row - bags.ptr[bag]}, feature "
            f"{feature}. Impute or drop such values first"
        )
    return bags


def _names_of(items: Any) -> tuple[str, ...] | None:
    """The columns of the first data frame among the items, if all of them are strings."""
    columns = next((item.columns for item in items if hasattr(item, "columns")), ())
    names = tuple(columns)
    return names if names and all(isinstance(name, str) for name in names) else None


def _offsets(sizes: Array) -> Array:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


class BagReader(BaseEstimator):
    """The base of all estimators and transformers of bags."""

    n_features_in_: int

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _read(self, X: Any, reset: bool) -> Bags:
        """The bags, whose features must be those of the training unless `reset`."""
        bags = as_bags(X)
        if _is_table(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
        elif reset:
            self.__dict__.pop("feature_names_in_", None)
            if bags.names is not None:
                self.feature_names_in_ = np.array(bags.names, dtype=object)
        elif bags.names not in (None, tuple(getattr(self, "feature_names_in_", bags.names or ()))):
            raise ValueError(
                f"The feature names should match those that were passed during fit: found "
                f"{list(bags.names or ())}, expected {list(self.feature_names_in_)}"
            )
        if len(bags) == 0:
            raise ValueError(
                "Found array with 0 sample(s) (shape=(0,)) while a minimum of 1 is required."
            )
        _check_n_features(self, bags.elements, reset=reset)
        return bags


def _is_table(X: Any) -> bool:
    """Whether X is a 2-D array or data frame, of which scikit-learn knows shape and names."""
    shape = getattr(X, "shape", None)
    return not isinstance(X, torch.Tensor) and shape is not None and len(shape) == 2
