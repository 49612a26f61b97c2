"""The kernels run on a GPU where there is one, and in Triton's interpreter elsewhere."""

import pytest
import torch

from equipool.ops import combination, momentum, ranges, restrained
from equipool.ops.resnet_gradient import binding


@pytest.fixture
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def forced(monkeypatch):
    """Makes every layer in float32 or shorter use the kernels, on any device."""
    pytest.importorskip("triton")

    def serve(x):
        return x.dtype != torch.float64

    monkeypatch.setattr(binding, "kernels_serve", serve)
    monkeypatch.setattr(momentum, "kernels_serve", serve)
    monkeypatch.setattr(combination, "kernels_serve", serve)
    monkeypatch.setattr(restrained, "kernels_serve", serve)
    monkeypatch.setattr(ranges, "kernels_serve", serve)
