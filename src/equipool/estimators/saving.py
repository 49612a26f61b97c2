"""Estimators as files: one of our own, read without unpickling anything, or an ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from equipool.estimators.bags import Array
from equipool.estimators.tables import TableSchema
from equipool.estimators.training import BagNetwork
from equipool.estimators.transformers import Scaling
from equipool.extras import check_extras
from equipool.files import load_tensors, save_tensors

if TYPE_CHECKING:
    from equipool.estimators.base import SetEstimator

KIND = "equipool estimator 2"
# Attributes of fitted estimators that are kept beside the networks, if they have them.
PLAIN = ("n_features_in_", "network_arguments_", "multilabel_", "columns_", "n_iter_", "stopped_")
ARRAYS = ("feature_names_in_", "classes_", "target_mean_", "target_scale_")


def save(estimator: SetEstimator, file: str | Path) -> None:
    """Write a fitted estimator to a file."""
    if callable(estimator.aggregation):
        raise ValueError("aggregation is a callable, expected a name: pickle the estimator instead")
    state = vars(estimator)
    mean, scale, clip = astuple(estimator.scaling_)
    metadata = {
        "estimator": type(estimator).__name__,
        "parameters": {k: _plain(v) for k, v in estimator.get_params(deep=False).items()},
        "attributes": {name: state[name] for name in PLAIN if name in state},
        "arrays": {name: _written(state[name]) for name in ARRAYS if name in state},
        "scaling": [mean.tolist(), scale.tolist(), clip],
        "networks": len(estimator.networks_),
        "table": asdict(estimator.table_schema_) if "table_schema_" in state else None,
    }
    tensors = {
        f"{number}.{name}": value
        for number, network in enumerate(estimator.networks_)
        for name, value in network.state_dict().items()
    }
    save_tensors(file, tensors, metadata, KIND)


def _plain(value: Any) -> Any:
    """A parameter as JSON. A random generator is not kept; a dictionary's keys may be numbers."""
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(one)] for key, one in value.items()]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, int | float | str) else None


def _written(values: Array) -> list[Any]:
    plain = values.astype(str) if values.dtype.kind == "M" else values
    return [values.dtype.str, plain.tolist()]


def load(file: str | Path) -> Any:
    """Read an estimator that was saved with its `save`. Nothing is unpickled.

    Args:
        file: the file that `save` wrote.

    Returns:
        A `SetClassifier` or `SetRegressor`, fitted.

    Raises:
        ValueError: if the file is damaged, or is no saved estimator.
    """
    from equipool.estimators.classifier import SetClassifier
    from equipool.estimators.regressor import SetRegressor

    tensors, metadata = load_tensors(file, KIND)
    parameters = metadata["parameters"]
    if isinstance(parameters.get("class_weight"), list):
        parameters["class_weight"] = dict(parameters["class_weight"])
    kind: Any = {"SetClassifier": SetClassifier, "SetRegressor": SetRegressor}
    estimator = kind[metadata["estimator"]](**parameters)
    state: dict[str, Any] = vars(estimator)
    state |= metadata["attributes"]
    for name, (dtype, values) in metadata["arrays"].items():
        state[name] = np.array(values, dtype=dtype)
    mean, scale, clip = metadata["scaling"]
    state["scaling_"] = Scaling(np.array(mean), np.array(scale), clip)
    if metadata["table"] is not None:
        state["table_schema_"] = TableSchema.from_json(metadata["table"])
    state["networks_"] = []
    for number in range(metadata["networks"]):
        start = f"{number}."
        own = {name[len(start) :]: v for name, v in tensors.items() if name.startswith(start)}
        network = BagNetwork(**state["network_arguments_"]).to(own["head.1.weight"].dtype)
        network.load_state_dict(own)
        state["networks_"].append(network.eval())
    return estimator


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
