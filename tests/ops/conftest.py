"""The kernels run on a GPU where there is one, and in Triton's interpreter elsewhere."""

import pytest
import torch

from equipool.ops import derivatives
from equipool.ops.resnet_gradient import torch as torch_gradient
from forced_kernels import force_kernels


@pytest.fixture
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def forced(monkeypatch):
    """Makes every layer in float32 or shorter use the kernels, on any device."""
    force_kernels(monkeypatch, torch_gradient, derivatives)
