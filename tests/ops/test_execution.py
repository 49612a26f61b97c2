"""Which implementation serves, and what is said where Triton is missing."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from equipool.ops import execution


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "Triton is not installed"),
        (SimpleNamespace(__version__="3.2.0"), r"Triton is too old \(3.2.0\)"),
    ],
)
def test_missing_triton_is_said_once(monkeypatch, found, told):
    monkeypatch.setitem(sys.modules, "triton", found)
    execution.triton_is_installed.cache_clear()
    with pytest.warns(UserWarning, match=f"{told}.*pip install"):
        assert not execution.triton_is_installed()
    assert not execution.triton_is_installed()  # a second warning would be an error
    execution.triton_is_installed.cache_clear()


def test_kernels_are_switched_off_in_one_thread_alone(monkeypatch):
    monkeypatch.setattr(execution, "is_eager_on_gpu", lambda x: True)
    monkeypatch.setattr(execution, "triton_is_installed", lambda: True)
    x = torch.zeros(2)
    with execution.kernels(False), ThreadPoolExecutor(1) as thread:
        assert not execution.kernels_serve(x)
        assert thread.submit(execution.kernels_serve, x).result()
    assert execution.kernels_serve(x)
    assert not execution.kernels_serve(x.double())
