"""Where a run is computed: devices, precision and further processes, by Lightning's Fabric."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed

from equipool.training.extras import check_extras
from equipool.training.task import Shard


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device asked for; None is a GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device is {device!r}, expected 'cpu' or 'cuda'") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {str(device)!r}, expected 'cpu' or 'cuda'")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no CUDA device")
    return device


class Place:
    """The device, the precision and the processes of a run.

    Under `torchrun`, the processes that it started share every batch; else there is one.
    """

    def __init__(self, device: str | torch.device | None, precision: str) -> None:
        check_extras()
        from lightning.fabric import Fabric

        wanted = resolve_device(device)
        launched = distributed.is_available() and distributed.is_torchelastic_launched()
        several = launched and int(os.environ["WORLD_SIZE"]) > 1
        devices: int | list[int] = [wanted.index or 0] if wanted.type == "cuda" else 1
        if several:
            devices = int(os.environ["LOCAL_WORLD_SIZE"])
        self.fabric: Any = Fabric(
            accelerator=wanted.type,
            devices=devices,
            num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)) if several else 1,
            strategy="ddp" if several else "auto",
            precision="32-true" if precision == "tf32" else precision,  # type: ignore[arg-type]
        )
        self.fabric.launch()
        self.precision = precision
        self.device: torch.device = self.fabric.device
        self.shard = Shard(self.fabric.global_rank, self.fabric.world_size)

    @property
    def alone(self) -> bool:
        return self.shard.world == 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files."""
        return self.shard.rank == 0

    def new_stream(self) -> torch.cuda.Stream | None:
        """A stream of its own for a run, where there are streams."""
        return torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def send(self, rows: list[list[float]]) -> torch.Tensor:
        """Numbers on the device, without waiting for it."""
        numbers = torch.tensor(rows)
        if self.device.type == "cuda":
            numbers = numbers.pin_memory()
        return numbers.to(self.device, non_blocking=True)

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Wait for the other processes. All of them must."""
        if not self.alone:
            self.fabric.barrier()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in one of the processes. All of them must ask."""
        if self.alone:
            return flag
        number = torch.tensor(float(flag), device=self.device)
        return bool(self.fabric.all_reduce(number, reduce_op="sum") > 0)

    def average_(self, tensor: torch.Tensor) -> None:
        """Fill in the mean over the processes."""
        if not self.alone:
            tensor.copy_(self.fabric.all_reduce(tensor.clone(), reduce_op="mean"))

    def from_leader(self, value: Any) -> Any:
        """The leading process's value."""
        return value if self.alone else self.fabric.broadcast(value)


def dtype_of_weights(precision: str) -> torch.dtype:
    """What the weights are kept in."""
    return {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Whether float32 products and convolutions may round their operands: in `tf32` only."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


@contextmanager
def tuned_convolutions() -> Iterator[None]:
    """On a GPU, try the ways to compute a convolution when its shape is first met, and keep to the
    fastest. All steps have the same shapes, and evaluations theirs; what is chosen untried for a
    few channels can take twice as long."""
    convolutions = torch.backends.cudnn
    before = convolutions.benchmark
    convolutions.benchmark = True
    try:
        yield
    finally:
        convolutions.benchmark = before
