"""Exporting is told from compiling, on every version of torch."""

import pytest
import torch

from equipool.ops.availability import is_exporting


class Told(torch.nn.Module):
    def forward(self, x):
        return x + 1 if is_exporting() else x


@pytest.mark.compile
def test_compiling_is_not_exporting():
    x = torch.zeros(2)
    assert torch.compile(Told(), backend="eager", fullgraph=True)(x).sum() == 0
    assert Told()(x).sum() == 0


@pytest.mark.compile
@pytest.mark.parametrize("strict", [False, True])
def test_exporting(strict):
    x = torch.zeros(2)
    assert torch.export.export(Told(), (x,), strict=strict).module()(x).sum() == 2
