"""Bags from AnnData: the cells of a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


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
    values = _values(adata, layer, obsm)
    if sample_key not in adata.obs:
        found = ", ".join(map(repr, adata.obs.columns))
        raise ValueError(f"sample_key is {sample_key!r}, expected a column of adata.obs: {found}")
    samples = adata.obs[sample_key]
    if samples.isna().any():
        cell = samples.index[samples.isna()][0]
        raise ValueError(f"cell {cell!r} has no value in adata.obs[{sample_key!r}]")
    codes, names = samples.factorize()
    order = np.argsort(codes, kind="stable")
    cells = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1) if len(order) else []
    return [_dense(values[some]) for some in cells], [str(name) for name in names]


def _values(adata: Any, layer: str | None, obsm: str | None) -> Any:
    if layer is not None and obsm is not None:
        raise ValueError("give layer or obsm, not both")
    for name, key, known in (("layer", layer, adata.layers), ("obsm", obsm, adata.obsm)):
        if key is not None:
            if key not in known:
                raise ValueError(f"{name} is {key!r}, expected one of {list(known)}")
            return known[key]
    return adata.X


def _dense(values: Any) -> NDArray[np.float32]:
    """A sparse matrix, an array or a data frame as an array."""
    dense = values.toarray() if hasattr(values, "toarray") else values
    return np.ascontiguousarray(dense, dtype=np.float32)
