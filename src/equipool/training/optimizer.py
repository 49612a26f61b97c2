"""Adam, set up so that nothing in it waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipool import Solver
from equipool.training.config import TrainingConfig


class Optimizer:
    """AdamW in one kernel for each group of parameters, with learning rates that are tensors.

    Where the learning rate of inner optimisers has a factor of its own, their parameters are a
    group of their own, the last; else all parameters are one group.
    """

    def __init__(self, network: nn.Module, config: TrainingConfig, device: torch.device) -> None:
        inner = {
            parameter
            for module in network.modules()
            if isinstance(module, Solver) and config.solver_rate_factor != 1
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
        self.adam = torch.optim.AdamW(
            [{"params": parameters} for parameters, _ in groups],
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

    def step(self, rates: Tensor, skipped: Tensor, divisor: Tensor | None) -> None:
        """One step, or none, nor a count of one, where `skipped` is 1.

        Args:
            rates: the learning rates `[groups]`, float32.
            skipped: 1 or 0, float32.
            divisor: what the gradients are divided by, float32 or float64; None for nothing.
        """
        if divisor is not None and divisor.dtype == torch.float64:  # torch's Adam reads float32
            torch._foreach_div_(self.gradients(), divisor)
            divisor = None
        for group, rate in zip(self.adam.param_groups, rates.unbind(), strict=True):
            group["lr"] = rate
        # Adam divides them as it reads them: this is for losses that were scaled up, and serves.
        self.adam.found_inf = skipped  # type: ignore[attr-defined]
        self.adam.grad_scale = divisor  # type: ignore[attr-defined]
        self.adam.step()
