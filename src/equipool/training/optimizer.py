"""Adam, set up so that nothing in it waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipool import Solver
from equipool.training.config import TrainingConfig


class Optimizer:
    """AdamW in one kernel for all parameters, with learning rates that are tensors.

    Group 0 are the parameters of the network, group 1 those of its inner optimisers, where there
    are any: their learning rate has a factor of its own.
    """

    def __init__(self, network: nn.Module, config: TrainingConfig, device: torch.device) -> None:
        inner = {
            parameter
            for module in network.modules()
            if isinstance(module, Solver)
            for parameter in module.parameters()
        }
        self.names = {p: name for name, p in network.named_parameters() if p.requires_grad}
        if not self.names:
            raise ValueError("the network has no parameters to train")
        groups = [
            ([p for p in self.names if p not in inner], 1.0),
            ([p for p in self.names if p in inner], config.solver_rate_factor),
        ]
        groups = [(parameters, factor) for parameters, factor in groups if parameters]
        self.factors = [factor for _, factor in groups]
        self.rates = [torch.zeros((), device=device) for _ in groups]
        self.adam = torch.optim.AdamW(
            [
                {"params": parameters, "lr": rate}
                for (parameters, _), rate in zip(groups, self.rates, strict=True)
            ],
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )
        # torch makes the state at the first step; made here, it can be filled before that
        for parameter in self.names:
            self.adam.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be written and filled in place."""
        return {
            f"{key}/{name}": value
            for parameter, name in self.names.items()
            for key, value in self.adam.state[parameter].items()
        }

    def zero_grad(self) -> None:
        for parameter in self.names:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.names if parameter.grad is not None]

    def step(self, rates: Tensor, skipped: Tensor) -> None:
        """One step with the learning rates `[groups]`, or none, nor a count of one, where
        `skipped` is 1."""
        for rate, value in zip(self.rates, rates.unbind(), strict=True):
            rate.copy_(value)
        self.adam.found_inf = skipped  # type: ignore[attr-defined]
        self.adam.step()
