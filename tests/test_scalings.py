"""Weights of a set's energy by the number of its elements."""

import math

import pytest
import torch

from cases import SCALINGS
from equipool.energy import scaling_weights

COUNTS = [0, 1, 2, 7, 1000, 0, 123_456]


def expected(scaling, count):
    """The weight of the regulariser, and of the potential."""
    if count == 0:
        return 0.0, 0.0
    whole = math.log2(count + 1) / (count + 1e-8)
    return {
        "log": (whole, whole),
        "log-mean": (1.0, math.log2(count + 1) / count),
        "sum": (1.0, 1.0),
        "mean": (1.0, 1 / count),
    }[scaling]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_weights(scaling, dtype):
    weights = scaling_weights(scaling, torch.tensor(COUNTS), dtype)
    rows = torch.tensor([expected(scaling, count) for count in COUNTS], dtype=torch.float64)
    for found, column in zip(weights, rows.T, strict=True):
        assert found.shape == (len(COUNTS), 1)
        assert found.dtype == dtype
        torch.testing.assert_close(found.squeeze(-1).double(), column, rtol=1e-6, atol=0)
