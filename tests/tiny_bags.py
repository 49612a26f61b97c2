"""The bags' format, with small bags that a network learns to tell apart in a second."""

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from python_blocks import ROOT

REAL = ROOT.parent / "shared" / "data"
needs_real_data = pytest.mark.skipif(
    not (REAL / "bags").exists(), reason=f"there is no {REAL / 'bags'}"
)
BAGS = 60


def columns(seed=0):
    """A table in which a bag is positive if one of its elements is large in the first feature;
    sorted by label, as the published ones are."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 8, BAGS)
    bag = np.repeat(np.arange(BAGS), sizes)
    label = np.repeat((np.arange(BAGS) >= BAGS // 2).astype(np.int64), sizes)
    features = rng.normal(size=(len(bag), 3)).astype(np.float32)
    first = np.concatenate([[0], sizes.cumsum()[:-1]])
    features[first, 0] += 8 * label[first]
    return {"bag": bag, "label": label} | {f"f{at}": features[:, at] for at in range(3)}


def write_table(folder, name="musk1", **changed):
    """`bags/NAME.parquet`, with some of its columns replaced, or left out where that is None."""
    content = {key: value for key, value in (columns() | changed).items() if value is not None}
    place = folder / "bags"
    place.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.table(content), place / f"{name}.parquet")
    return place / f"{name}.parquet"


def write_folds(folder, **folds):
    (folder / "bags").mkdir(exist_ok=True)
    np.savez(folder / "bags" / "folds.npz", **folds)
