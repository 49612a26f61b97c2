"""Estimators as ONNX models, which run without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

from equipool.estimators.scaling import Scaling
from equipool.extras import check_extras


class PaddedBags(nn.Module):
    """The networks of an estimator with the scaling of the features before and the meaning of the
    outputs after them: `x [B, L, d]`, `mask [B, L]` -> predictions."""

    mean: Tensor
    scale: Tensor

    def __init__(
        self, networks: Sequence[nn.Module], scaling: Scaling, finish: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.networks = nn.ModuleList(deepcopy(network).float() for network in networks)
        self.finish = finish
        self.register_buffer("mean", torch.from_numpy(scaling.mean).float())
        self.register_buffer("scale", torch.from_numpy(scaling.scale).float())
        self.clip = scaling.clip

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scaled = ((x - self.mean) / self.scale).clamp(-self.clip, self.clip)
        outputs = torch.stack([network(scaled, mask=mask) for network in self.networks])
        return self.finish(outputs.mean(0))


def export_onnx(model: PaddedBags, num_features: int, file: str | Path) -> None:
    """Write an ONNX model for any number of bags of any size, `x` and `mask` to `y`."""
    check_extras("export_onnx", {"export": ["onnx", "onnxscript"]})
    x = torch.randn(3, 5, num_features)
    mask = torch.arange(5) < torch.tensor([[5], [2], [3]])
    sizes = {name: {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for name in ("x", "mask")}
    torch.onnx.export(
        model.eval(), (x, mask), file, dynamo=True, dynamic_shapes=sizes, input_names=["x", "mask"],
        output_names=["y"], verbose=False,
    )  # fmt: skip
