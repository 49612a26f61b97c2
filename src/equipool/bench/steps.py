"""One step, as it is timed: of the layer alone."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.bench.cases import Batch, Mode, Precision
from equipool.bench.precision import forward_in, products_in
from equipool.bench.readouts import Readout
from equipool.ops.availability import kernels


class LayerStep:
    """A readout's forward pass, and in training its backward pass to the elements and all
    parameters. What was computed last can be looked at."""

    def __init__(
        self, readout: Readout, batch: Batch, mode: Mode, precision: Precision, use_kernels: bool
    ) -> None:
        self.readout = readout
        self.batch = batch
        self.mode = mode
        self.precision = precision
        self.use_kernels = use_kernels
        self.x = batch.x.detach().clone().requires_grad_(mode == "training")
        self.parameters = dict(readout.named_parameters())
        self.y: Tensor | None = None
        self.gradients: tuple[Tensor | None, ...] = ()

    def __call__(self) -> None:
        self.y, self.gradients = None, ()  # held on to, they would count as memory of this step
        training = self.mode == "training"
        with kernels(self.use_kernels), products_in(self.precision):
            with forward_in(self.precision, self.x.device), torch.set_grad_enabled(training):
                y = self.readout(self.x, self.batch)
            if training:
                self.gradients = torch.autograd.grad(
                    y,
                    [self.x, *self.parameters.values()],
                    self.batch.upstream.to(y.dtype),
                    allow_unused=True,
                )
        self.y = y.detach()

    def parameter_gradients(self) -> dict[str, Tensor]:
        """By parameter; zero where none arrived."""
        return {
            name: torch.zeros_like(parameter) if gradient is None else gradient
            for (name, parameter), gradient in zip(
                self.parameters.items(), self.gradients[1:], strict=True
            )
        }
