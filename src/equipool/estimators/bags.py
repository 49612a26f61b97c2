"""Bags of vectors, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import _check_n_features, _get_feature_names, validate_data

Array = NDArray[Any]

SHIFT, SPREAD = 2.0, 0.5  # of the elements that positive bags of `make_bags` have in addition


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
        if not isinstance(at, slice | np.ndarray | list):
            position = range(len(self))[at]
            return self.elements[self.ptr[position] : self.ptr[position + 1]]
        positions = np.arange(len(self))[at]
        sizes = self.sizes[positions]
        ptr = offsets(sizes)
        rows = np.arange(ptr[-1]) + np.repeat(self.ptr[positions] - ptr[:-1], sizes)
        return Bags(self.elements[rows], ptr, self.names)


def offsets(sizes: Array) -> Array:
    """`[B + 1]` where bags of these sizes begin and end."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def as_bags(X: Any) -> Bags:
    """Read bags.

    | X | bags |
    |---|---|
    | list, tuple or object array of `[n_i, d]` arrays | each item |
    | 3-D array `[B, n, d]` | each row, all of one size |
    | 2-D array `[B, d]`, data frame, list of rows | one element each |

    Bags may be empty. All values must be finite.
    """
    if isinstance(X, Bags):
        return X
    if isinstance(X, list | tuple) or getattr(X, "ndim", 0) in (1, 3):
        items = [np.asarray(item) for item in X]
        if any(item.ndim > 1 for item in items):
            return _side_by_side(items)
    names, values = _get_feature_names(X), np.asarray(X)
    if values.dtype.kind in "iuMm":
        X = _as_floats(values, "X")  # or refuse it
    rows = check_array(X, dtype=[np.float64, np.float32], ensure_min_samples=0, input_name="X")
    return Bags(rows, np.arange(len(rows) + 1), None if names is None else tuple(names))


def _side_by_side(items: list[Array]) -> Bags:
    width = next((item.shape[1] for item in items if item.ndim == 2 and item.shape[1]), 0)
    parts = []
    for position, item in enumerate(items):
        if item.size == 0 and width:
            item = np.zeros((0, width))
        if item.ndim != 2 or item.shape[1] != width or width == 0:
            raise ValueError(
                f"bag {position} of X has shape {list(item.shape)}, expected [n, {width or 'd'}]: "
                "one row per element"
            )
        parts.append(_as_floats(item, f"bag {position} of X"))
    # Empty bags may be of another type.
    elements = np.concatenate([part for part in parts if len(part)] or parts[:1])
    ptr = offsets(np.array([len(part) for part in parts]))
    if not (finite := np.isfinite(elements)).all():
        row, feature = np.argwhere(~finite)[0]
        bag = int(np.searchsorted(ptr, row, side="right")) - 1
        found = "NaN" if np.isnan(elements[row, feature]) else "infinity"
        raise ValueError(
            f"Input X contains {found}: bag {bag}, element {row - ptr[bag]}, feature {feature}. "
            "Impute or drop such values first"
        )
    return Bags(elements, ptr)


def _as_floats(values: Array, name: str) -> Array:
    """float32 stays, every other number becomes float64."""
    if values.dtype == np.float32:
        return values
    if values.dtype.kind in "cMm":
        raise ValueError(
            f"{name} has dtype {values.dtype}, expected numbers; pass dates as seconds, "
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
        if len(bags) == 0:
            raise ValueError(
                "Found array with 0 sample(s) (shape=(0,)) while a minimum of 1 is required."
            )
        if bags.names is None and not reset and getattr(X, "ndim", 0) != 2:
            _check_n_features(self, bags.elements, reset=False)  # a list of arrays has no names
            return bags
        heading: Any = bags.elements[:0]
        if bags.names is not None:
            heading = pa.table({name: pa.array([], pa.float64()) for name in bags.names})
        validate_data(self, heading, reset=reset, skip_check_array=True)
        return bags


def make_bags(
    num_bags: int = 200, *, num_features: int = 4, min_size: int = 5, max_size: int = 30,
    random_state: Any = None,
) -> tuple[list[NDArray[np.float32]], NDArray[np.int64]]:  # fmt: skip
    """Generate bags for a multiple-instance problem. Elements are normal with mean 0 and deviation
    1. In bags of label 1, up to a quarter of the elements, at least one, are instead normal with
    mean 2 and deviation 1/2. Half of the bags have label 1.

    Args:
        num_bags: the number of bags.
        num_features: size of an element.
        min_size: smallest number of elements of a bag.
        max_size: largest number of elements of a bag.
        random_state: seed, or a random generator of numpy.

    Returns:
        The bags, arrays `[n_i, num_features]`, and their labels, `[num_bags]`.

    Example:
        >>> bags, labels = make_bags(100, random_state=0)
        >>> len(bags), bags[0].shape[1], labels.mean()
        (100, 4, np.float64(0.5))
    """
    draw = check_random_state(random_state)
    sizes = draw.randint(min_size, max_size + 1, num_bags)
    labels = draw.permutation(np.arange(num_bags) % 2)
    ends = np.cumsum(sizes)
    x = draw.standard_normal((sizes.sum(), num_features)).astype(np.float32)
    special = np.maximum(1, draw.rand(num_bags) * sizes / 4).astype(np.int64) * labels
    position = np.arange(len(x)) - np.repeat(ends - sizes, sizes)  # in its bag
    shifted = position < np.repeat(special, sizes)
    x[shifted] = SHIFT + SPREAD * x[shifted]
    return np.split(x, ends[:-1]), labels


def from_anndata(
    adata: Any, sample_key: str, *, layer: str | None = None, obsm: str | None = None
) -> tuple[list[NDArray[np.float32]], list[str]]:
    """The cells of each sample as a bag. anndata itself is not imported.

    Args:
        adata: an `AnnData`, which may be backed by a file.
        sample_key: column of `adata.obs` that names the sample of each cell.
        layer: the values are `adata.layers[layer]`. Default: `adata.X`.
        obsm: the values are `adata.obsm[obsm]`, such as `"X_pca"`.

    Returns:
        The bags, arrays `[cells, values]`, and the names of the samples, both in the order in which
        samples first appear. To get a value of each sample from a column of `adata.obs`:
        `adata.obs.groupby(sample_key)[column].first()[ids]`.

    Example:
        >>> import anndata, pandas
        >>> obs = pandas.DataFrame({"patient": ["p2", "p1", "p2"]}, index=["c0", "c1", "c2"])
        >>> bags, ids = from_anndata(anndata.AnnData(np.eye(3), obs), "patient")
        >>> ids, bags[0]
        (['p2', 'p1'], array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32))
    """
    if layer is not None and obsm is not None:
        raise ValueError("give layer or obsm, not both")
    values = adata.X if layer is None else adata.layers[layer]
    values = values if obsm is None else adata.obsm[obsm]
    samples = adata.obs[sample_key]
    if samples.isna().any():
        cell = samples.index[samples.isna()][0]
        raise ValueError(f"cell {cell!r} has no value in adata.obs[{sample_key!r}]")
    codes, names = samples.factorize()
    bags = []
    for code in range(len(names)):
        cells = values[np.flatnonzero(codes == code)]
        dense = cells.toarray() if hasattr(cells, "toarray") else cells
        bags.append(np.ascontiguousarray(dense, dtype=np.float32))
    return bags, [str(name) for name in names]
