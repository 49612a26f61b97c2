"""Estimators as files: a folder with JSON and safetensors, read without unpickling anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from equipool.environment import versions
from equipool.estimators.bags import Array
from equipool.estimators.network import BagNetwork
from equipool.estimators.scaling import Scaling
from equipool.estimators.schema import TableSchema

if TYPE_CHECKING:
    from equipool.estimators.base import SetEstimator

FORMAT = 3
UNCLIPPED = 2  # the same without clipped features; 1 had other equilibrium layers
MODEL, WEIGHTS = "model.json", "weights.safetensors"
# Attributes of fitted estimators; those that one has not are left out.
IN_JSON = ("n_features_in_", "network_arguments_", "multilabel_", "columns_")
AS_LABELS = ("feature_names_in_", "classes_")
AS_TENSORS = ("target_mean_", "target_scale_")


def save(estimator: SetEstimator, folder: str | Path) -> None:
    """Write a fitted estimator to a folder, which is created."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = vars(estimator)
    network = estimator.networks_[0]
    model = {
        "format": FORMAT,
        "estimator": type(estimator).__name__,
        "parameters": _parameters(estimator),
        "attributes": {name: state[name] for name in IN_JSON if name in state},
        "labels": {name: _labels(state[name]) for name in AS_LABELS if name in state},
        "networks": len(estimator.networks_),
        "dtype": str(next(network.parameters()).dtype).removeprefix("torch."),
        "versions": versions(),
    }
    if "table_schema_" in state:
        model["table"] = estimator.table_schema_.to_json()
    tensors = {f"scaling.{name}": value for name, value in vars(estimator.scaling_).items()}
    tensors |= {name: state[name] for name in AS_TENSORS if name in state}
    for number, history in enumerate(estimator.history_):
        tensors |= {f"history.{number}.{name}": value for name, value in history.items()}
    found = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in tensors.items()}
    for number, one in enumerate(estimator.networks_):
        found |= {f"networks.{number}.{name}": v for name, v in one.state_dict().items()}
    save_file({name: value.contiguous() for name, value in found.items()}, folder / WEIGHTS)
    (folder / MODEL).write_text(json.dumps(model, indent=1) + "\n", encoding="utf-8")


def load(folder: str | Path) -> Any:
    """Read an estimator that was saved with its `save`. Nothing is unpickled.

    Args:
        folder: the folder that `save` wrote.

    Returns:
        A `SetClassifier` or `SetRegressor`, fitted.
    """
    from equipool.estimators.classifier import SetClassifier
    from equipool.estimators.regressor import SetRegressor

    folder = Path(folder)
    model, tensors = _read_files(folder)
    kinds: dict[str, Any] = {"SetClassifier": SetClassifier, "SetRegressor": SetRegressor}
    if model.get("format") not in (UNCLIPPED, FORMAT) or model.get("estimator") not in kinds:
        raise ValueError(
            f"{folder / MODEL} has format {model.get('format')!r} and estimator "
            f"{model.get('estimator')!r}, expected format {FORMAT} and one of {list(kinds)}"
        )
    parameters, scaling = model["parameters"], _part(tensors, "scaling")
    if model["format"] == UNCLIPPED:
        parameters["clip"], scaling["clip"] = None, torch.tensor(torch.inf)
    if isinstance(parameters.get("class_weight"), list):
        parameters["class_weight"] = dict(parameters["class_weight"])
    estimator = kinds[model["estimator"]](**parameters)
    for name, value in model["attributes"].items():
        setattr(estimator, name, value)
    for name, labels in model["labels"].items():
        setattr(estimator, name, np.array(labels["values"], dtype=labels["dtype"]))
    if "table" in model:
        estimator.table_schema_ = TableSchema.from_json(model["table"])
    for name in AS_TENSORS:
        if name in tensors:
            setattr(estimator, name, tensors[name].numpy())
    estimator.scaling_ = Scaling(
        scaling["mean"].numpy(), scaling["scale"].numpy(), float(scaling["clip"])
    )
    numbers = range(model["networks"])
    estimator.history_ = [
        {name: value.numpy() for name, value in _part(tensors, f"history.{number}").items()}
        for number in numbers
    ]
    estimator.networks_ = [_network(model, _part(tensors, f"networks.{n}")) for n in numbers]
    return estimator


def _network(model: dict[str, Any], weights: dict[str, torch.Tensor]) -> BagNetwork:
    network = BagNetwork(**model["attributes"]["network_arguments_"])
    network.to(getattr(torch, model["dtype"])).load_state_dict(weights)
    return network.eval()


def _part(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    prefix = f"{name}."
    return {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}


def _read_files(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    for file in (folder / MODEL, folder / WEIGHTS):
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing: {folder} holds no saved estimator")
    try:
        return json.loads((folder / MODEL).read_text("utf-8")), load_file(folder / WEIGHTS)
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"the files of {folder} are damaged: {error}") from error


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
    return {"dtype": values.dtype.str if values.dtype != object else "O", "values": values.tolist()}
