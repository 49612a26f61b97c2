"""Names that the docstrings' examples may use."""

import pytest
import torch

import equipool


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, equipool=equipool)
