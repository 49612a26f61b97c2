"""Bags from AnnData."""

import numpy as np
import pandas
import pytest
from scipy import sparse

from equipool.estimators import from_anndata

anndata = pytest.importorskip("anndata")

PATIENTS = [2, 1, 2, 3, 1]  # no text, which this anndata cannot write with pandas 3


@pytest.fixture(params=["dense", "sparse", "backed"])
def adata(request, tmp_path):
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    cells = pandas.Index([f"c{number}" for number in range(5)], dtype=object)
    obs = pandas.DataFrame({"patient": pandas.Categorical(PATIENTS)}, index=cells)
    var = pandas.DataFrame(index=pandas.Index(["g0", "g1", "g2"], dtype=object))
    given = sparse.csr_matrix(values) if request.param == "sparse" else values
    made = anndata.AnnData(given, obs, var)
    made.layers["counts"] = made.X * 2
    made.obsm["X_pca"] = np.asarray(values)[:, :2].astype(np.float64)
    if request.param == "backed":
        made.write_h5ad(tmp_path / "cells.h5ad")
        made = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    yield made
    if request.param == "backed":
        made.file.close()


def test_the_cells_of_a_sample_are_its_bag(adata):
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    for given, expected in (({}, values), ({"layer": "counts"}, 2 * values),
                            ({"obsm": "X_pca"}, values[:, :2])):  # fmt: skip
        bags, ids = from_anndata(adata, "patient", **given)
        assert ids == ["2", "1", "3"]
        for bag, rows in zip(bags, ([0, 2], [1, 4], [3]), strict=True):
            assert bag.dtype == np.float32
            assert np.array_equal(bag, expected[rows])


def test_what_is_wrong_is_named(adata):
    with pytest.raises(KeyError, match="site"):
        from_anndata(adata, "site")
    with pytest.raises(ValueError, match="not both"):
        from_anndata(adata, "patient", obsm="X_pca", layer="counts")
    adata.obs.loc["c3", "patient"] = None
    with pytest.raises(ValueError, match="cell 'c3' has no value"):
        from_anndata(adata, "patient")
