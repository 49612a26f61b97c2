"""Whether a layer is the same as before: its parts, their settings and where its tensors lie."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

# Classes from elsewhere may do anything in Python.
KNOWN = ("equipool.", "torch.nn.modules.")
PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OF_EVERY_MODULE = frozenset(vars(nn.Module()))


class LayerIdentity:
    """What a layer is made of: its parts, their settings, and where their tensors lie. The layer's
    own settings and the values of the tensors count only if asked for.

    Args:
        outputs: whether to notice all that changes outputs: the layer's own settings, and values
            that were changed in place, as an optimiser or `load_state_dict` does.
    """

    def __init__(self, layer: nn.Module, *, outputs: bool = False) -> None:
        # Not the layer itself, which may hold this object: both are to go when nobody needs them.
        self._lengths: list[tuple[dict[str, Any], int]] = []
        self._values: list[tuple[dict[str, Any], str, object]] = []
        self._frozen: list[tuple[dict[str, Any], str, Hashable]] = []
        self._tensors: list[tuple[dict[str, Any], str, Tensor, int, bool]] = []
        self._parts = [vars(module) for module in layer.modules() if module is not layer]
        self.known = type(layer).__module__.startswith(KNOWN)
        """Whether all parts are this package's or torch's, without hooks, with plain settings."""
        for module in layer.modules():
            self._add_contents(module)
            if outputs or module is not layer:
                self._add_settings(module)
        trainable = {id(t): t for _, _, t, _, requires_grad in self._tensors if requires_grad}
        self.trainable: list[Tensor] = list(trainable.values())
        self._versions = self._read_versions() if outputs else None

    def holds(self) -> bool:
        """Whether all of it is still as it was."""
        for tensors, name, tensor, place, trainable in self._tensors:
            now = tensors.get(name)
            if now is not tensor or now.data_ptr() != place or now.requires_grad != trainable:
                return False
        if any(len(content) != length for content, length in self._lengths):
            return False
        return (
            all(content.get(name) == value for content, name, value in self._values)
            and all(freeze(content.get(name)) == value for content, name, value in self._frozen)
            and (self._versions is None or self._versions == self._read_versions())
        )

    def training(self) -> tuple[bool, ...]:
        """Of each part whether it is in training mode, which the identity does not depend on."""
        return tuple(part["training"] for part in self._parts)

    def _add_contents(self, module: nn.Module) -> None:
        contents: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        self._lengths += [(content, len(content)) for content in (*contents, module._modules)]
        self._values += [(module._modules, *child) for child in module._modules.items()]
        for tensors in contents:
            for name, tensor in tensors.items():
                if tensor is not None:
                    place = tensor.data_ptr()
                    self._tensors.append((tensors, name, tensor, place, tensor.requires_grad))

    def _add_settings(self, module: nn.Module) -> None:
        own = vars(module)
        self._lengths += [(own, len(own)), *((own[hooks], len(own[hooks])) for hooks in HOOKS)]
        self.known &= type(module).__module__.startswith(KNOWN)
        self.known &= not any(own[hooks] for hooks in HOOKS)
        for name in own.keys() - OF_EVERY_MODULE:
            value, frozen = own[name], freeze(own[name])
            self.known &= frozen is not None
            if isinstance(value, PLAIN):  # as good as all: compared by itself, which is faster
                self._values.append((own, name, value))
            else:
                self._frozen.append((own, name, frozen))

    def _read_versions(self) -> list[int]:
        return [0 if t.is_inference() else t._version for _, _, t, *_ in self._tensors]


def freeze(value: object) -> Hashable:
    """A value to compare settings by: plain values, sequences of them, and this package's objects
    that have such attributes. None for what may be anything, such as a function or a tensor."""
    if value is None or isinstance(value, PLAIN):
        return (value,)
    if isinstance(value, list | tuple):
        parts = [freeze(part) for part in value]
        return None if None in parts else (type(value), *parts)
    kind = type(value)
    if not kind.__module__.startswith(KNOWN) or not hasattr(value, "__dict__"):
        return None
    attributes = {name: freeze(attribute) for name, attribute in sorted(vars(value).items())}
    return None if None in attributes.values() else (kind, *attributes.items())


def settings(layer: nn.Module) -> dict[str, object]:
    """What must be the same for two layers to compute the same function of their tensors, each
    value by its path, such as `{"potential.norms.0.eps": (1e-05,)}`. Of what cannot be compared,
    such as a function, the type."""
    found: dict[str, object] = {}
    for path, module in layer.named_modules():
        prefix = f"{path}." if path else ""
        found[f"{prefix}class"] = type(module).__qualname__
        for name, value in vars(module).items():
            if name == "training" or name not in OF_EVERY_MODULE:
                found[prefix + name] = freeze(value) or type(value).__qualname__
    for name, tensor in chain(layer.named_parameters(), layer.named_buffers()):
        found[name] = (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
    return found
