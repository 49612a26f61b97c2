"""Names that the docstrings' examples may use."""

import os

import pytest
import torch

if not torch.cuda.is_available():  # read by Triton when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

import equipool


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, equipool=equipool)


# Read for their fixtures; collected for doctests as well, they would all be one module "conftest".
collect_ignore_glob = ["tests/conftest.py", "tests/*/conftest.py"]
