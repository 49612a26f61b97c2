"""Runs the engine of the built page in node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from equipool.explore.page import PAGE

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node")


def run_engine(cases):
    """The results of `run_engine.mjs` for each case."""
    script = Path(__file__).parent / "run_engine.mjs"
    done = subprocess.run(
        [NODE, script, PAGE], input=json.dumps(cases), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def close(found, expected, tolerance=1e-4):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    found = torch.tensor(found, dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
