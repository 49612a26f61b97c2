"""The scripts of benchmarks/ and docs/figures/ can be imported, as from their own folders."""

import gc
import sys

import pytest

from python_blocks import ROOT

sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "docs" / "figures")]


@pytest.fixture(scope="session", autouse=True)
def _quick_collections():
    """Measurements collect garbage, which takes a second with all that the suite has imported."""
    gc.freeze()
    yield
    gc.unfreeze()
