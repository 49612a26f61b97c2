"""Runs that count characters, and the script that makes tables and pictures of them."""

import pytest
from counting_records import made
from page_script import load_script
from records import write_records, written

from equipool.report import read_runs


@pytest.fixture
def script():
    return load_script("omniglot")


@pytest.fixture
def runs(tmp_path):
    return read_runs(
        write_records(
            tmp_path,
            made([0.125, 0.25, 0.375], validation=[0.25, 0.75, 0.5]),
            made([0.25, 0.375, 0.625], validation=[0.25, 0.5, 0.75], seed=1),
            made([0.5, 0.5, 0.75], "equilibrium", validation=[0.1] * 3, learning_rate=3e-4),
        )
    )


@pytest.fixture
def alone(tmp_path):
    """Of the same settings, but for the last."""
    return written(
        tmp_path / "alone",
        made([0.5], seed=7, seconds=0.5),
        made([0.5, 0.5], "equilibrium", seconds=2.0),
        made([0.5, 0.5], "equilibrium", seconds=0.25, batch_size=1024, precision="bf16-mixed"),
    )


@pytest.fixture
def groups(script, runs):
    return script.grouped(runs)
