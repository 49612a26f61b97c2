"""Noticing that modules have changed since a solve was recorded."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

# Modules from elsewhere may do anything in Python, which a recording would leave out.
KNOWN = ("equipool.", "torch.nn.modules.")
PLAIN = (bool, int, float, str, tuple, type(None))
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Watch:
    """What a layer is made of: its parts, their settings, and where their tensors lie. The settings
    of the layer itself are not watched."""

    def __init__(self, layer: nn.Module) -> None:
        self._lengths: list[tuple[dict[str, Any], int]] = []
        self._values: list[tuple[dict[str, Any], str, Any]] = []
        self._tensors: list[tuple[dict[str, Any], str, Tensor, int, bool]] = []
        parts = [module for module in layer.modules() if module is not layer]
        self._add_contents(layer)
        for module in parts:
            self._add_settings(module)
            self._add_contents(module)
        found = [tensor for _, _, tensor, _, trainable in self._tensors if trainable]
        self.trainable: list[Tensor] = list({id(tensor): tensor for tensor in found}.values())
        self.replayable = all(
            type(module).__module__.startswith(KNOWN)
            and not any(getattr(module, hooks) for hooks in HOOKS)
            for module in parts
        )

    def _add_settings(self, module: nn.Module) -> None:
        own = module.__dict__
        self._lengths += [(own, len(own)), *((own[hooks], len(own[hooks])) for hooks in HOOKS)]
        for name, value in own.items():
            if isinstance(value, PLAIN) and name != "training":
                self._values.append((own, name, value))

    def _add_contents(self, module: nn.Module) -> None:
        self._lengths.append((module._modules, len(module._modules)))
        for name, child in module._modules.items():
            self._values.append((module._modules, name, child))
        contents: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in contents:
            self._lengths.append((tensors, len(tensors)))
            for name, tensor in tensors.items():
                if tensor is not None:
                    place = tensor.data_ptr()
                    self._tensors.append((tensors, name, tensor, place, tensor.requires_grad))

    def holds(self) -> bool:
        """Whether all of it is still as it was."""
        for tensors, name, tensor, place, trainable in self._tensors:
            now = tensors.get(name)
            if now is not tensor or now.data_ptr() != place or now.requires_grad != trainable:
                return False
        if any(len(content) != length for content, length in self._lengths):
            return False
        return all(content.get(name) == value for content, name, value in self._values)
