"""The settings of a layer as plain data, and what differs between two of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import Tensor

PLAIN = (bool, int, float, str, type(None))
# Do not change what a trained layer computes, or are stored as tensors.
WITHOUT_EFFECT = frozenset({
    "differentiation", "learnable", "factored", "dropout", "bias_std", "std", "value", "weight",
    "learning_rate", "momentum", "check_finite", "cuda_graphs",
})  # fmt: skip


def config_of(part: object) -> dict[str, Any]:
    """The class of a part and the arguments that it was constructed with, parts of it likewise."""
    found: dict[str, Any] = {"class": type(part).__name__}
    for name in inspect.signature(type(part)).parameters:
        scalar = getattr(part, f"raw_{name}", None)
        value = getattr(part, name, None) if scalar is None else scalar.given
        if hasattr(part, name):
            found[name] = _plain(value)
    return found


def _plain(value: object) -> Any:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Tensor):
        return f"tensor of shape {list(value.shape)}"
    if type(value).__module__.startswith("equipool."):
        return config_of(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


def differences(own: Any, other: Any, name: str = "") -> Iterator[str]:
    """The settings that change what a trained layer computes and differ, as text."""
    if isinstance(own, dict) and isinstance(other, dict) and own.get("class") == other.get("class"):
        for key in dict.fromkeys((*own, *other)):
            if key not in WITHOUT_EFFECT:
                path = f"{name}.{key}" if name else key
                yield from differences(own.get(key), other.get(key), path)
    elif own != other:
        yield f"{name} is {_brief(own)} here and {_brief(other)} there"


def _brief(value: Any) -> str:
    if not isinstance(value, dict):
        return repr(value)
    arguments = (f"{name}={_brief(one)}" for name, one in value.items() if name != "class")
    return f"{value['class']}({', '.join(arguments)})"
