"""Estimators as files: one of our own, read without unpickling anything, or an ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from equipool.estimators.bags import Array
from equipool.estimators.network import BagNetwork
from equipool.estimators.scaling import Scaling
from equipool.estimators.schema import TableSchema
from equipool.extras import check_extras
from equipool.files import FileError, load_tensors, save_tensors

if TYPE_CHECKING:
    from equipool.estimators.base import SetEstimator

KIND = "equipool estimator 1"
# Attributes of fitted estimators; those that one has not are left out.
IN_JSON = (
    "n_features_in_", "network_arguments_", "multilabel_", "columns_", "n_iter_", "stopped_",
)  # fmt: skip
AS_LABELS = ("feature_names_in_", "classes_")
AS_TENSORS = ("target_mean_", "target_scale_")


def save(estimator: SetEstimator, file: str | Path) -> None:
    """Write a fitted estimator to a file."""
    if callable(estimator.aggregation):
        raise ValueError("aggregation is a callable, expected a name: pickle the estimator instead")
    state = vars(estimator)
    metadata = {
        "estimator": type(estimator).__name__,
        "parameters": _parameters(estimator),
        "attributes": {name: state[name] for name in IN_JSON if name in state},
        "labels": {name: _labels(state[name]) for name in AS_LABELS if name in state},
        "clip": float(estimator.scaling_.clip),
        "networks": len(estimator.networks_),
        "table": estimator.table_schema_.to_json() if "table_schema_" in state else None,
    }
    arrays = {name: state[name] for name in AS_TENSORS if name in state}
    arrays |= {"scaling.mean": estimator.scaling_.mean, "scaling.scale": estimator.scaling_.scale}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in arrays.items()}
    for number, network in enumerate(estimator.networks_):
        tensors |= {f"networks.{number}.{name}": v for name, v in network.state_dict().items()}
    save_tensors(file, tensors, metadata, KIND)


def load(file: str | Path) -> Any:
    """Read an estimator that was saved with its `save`. Nothing is unpickled.

    Args:
        file: the file that `save` wrote.

    Returns:
        A `SetClassifier` or `SetRegressor`, fitted.

    Raises:
        ValueError: if the file is damaged, or is no saved estimator.
    """
    tensors, metadata = load_tensors(file, KIND)
    try:
        return _estimator(tensors, metadata)
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise FileError(
            f"{file} has no estimator of this version of equipool ({reason})"
        ) from error


def _estimator(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> Any:
    from equipool.estimators.classifier import SetClassifier
    from equipool.estimators.regressor import SetRegressor

    kinds: dict[str, Any] = {"SetClassifier": SetClassifier, "SetRegressor": SetRegressor}
    parameters = metadata["parameters"]
    if isinstance(parameters.get("class_weight"), list):
        parameters["class_weight"] = dict(parameters["class_weight"])
    estimator = kinds[metadata["estimator"]](**parameters)
    found: dict[str, Any] = dict(metadata["attributes"])
    for name, labels in metadata["labels"].items():
        found[name] = np.array(labels["values"], dtype=labels["dtype"])
    if metadata["table"] is not None:
        found["table_schema_"] = TableSchema.from_json(metadata["table"])
    found |= {name: tensors[name].numpy() for name in AS_TENSORS if name in tensors}
    scaling = _part(tensors, "scaling")
    found["scaling_"] = Scaling(
        scaling["mean"].numpy(), scaling["scale"].numpy(), metadata["clip"]
    )  # fmt: skip
    weights = [_part(tensors, f"networks.{number}") for number in range(metadata["networks"])]
    if not weights or not all(weights):
        raise ValueError(f"it lacks weights for {len(weights)} networks")
    found["networks_"] = [_network(found["network_arguments_"], one) for one in weights]
    vars(estimator).update(found)
    return estimator


def _network(arguments: dict[str, Any], weights: dict[str, Tensor]) -> BagNetwork:
    network = BagNetwork(**arguments)
    network.to(weights["head.1.weight"].dtype).load_state_dict(weights)  # their order may be any
    return network.eval()


def _part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    prefix = f"{name}."
    return {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}


def _parameters(estimator: SetEstimator) -> dict[str, Any]:
    """The parameters as JSON. A random generator is not kept: a loaded estimator has none."""
    found = estimator.get_params(deep=False)
    if not isinstance(found["random_state"], int | None):
        found["random_state"] = None
    if isinstance(found.get("class_weight"), dict):  # its keys may be numbers
        found["class_weight"] = [[_plain(k), v] for k, v in found["class_weight"].items()]
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _labels(values: Array) -> dict[str, Any]:
    plain = values.astype(str) if values.dtype.kind == "M" else values
    return {"dtype": values.dtype.str if values.dtype != object else "O", "values": plain.tolist()}


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
