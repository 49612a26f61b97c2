"""Device, precision and processes of a run, and the random numbers of its steps."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, distributed, nn

from equipool import extras
from equipool.training.task import Shard

_MASK = (1 << 64) - 1


def check_extras() -> None:
    """Raise an ImportError with the command to run if a package is missing."""
    extras.check_extras("training", {"train": ("filelock", "safetensors")})


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device with this name; None picks a GPU if there is one."""
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


class InPrecision(nn.Module):
    """A network that computes in bfloat16 or float64: inputs are cast to that dtype; with bfloat16,
    outputs are cast to float32."""

    def __init__(self, network: nn.Module, precision: str) -> None:
        super().__init__()
        self.network, self.mixed = network, precision == "bf16-mixed"
        self.inputs = torch.bfloat16 if self.mixed else dtype_of_weights(precision)
        self.outputs = torch.promote_types(self.inputs, torch.float32)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        arguments, named = _cast((arguments, named), self.inputs)
        device = next(self.network.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.mixed):
            found = self.network(*arguments, **named)
        return _cast(found, self.outputs)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """Tensors of floating point numbers in this dtype, also those in tuples, lists and dicts."""
    if isinstance(values, Tensor):
        return values.to(dtype) if values.is_floating_point() else values
    if isinstance(values, dict):
        return {name: _cast(value, dtype) for name, value in values.items()}
    if type(values) in (tuple, list):
        return type(values)(_cast(value, dtype) for value in values)
    return values


def dtype_of_weights(precision: str) -> torch.dtype:
    return {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)


def leave_group() -> None:
    """End the process group and its threads.

    A network wrapped for several processes is part of a cycle of references and keeps the group
    alive until it is collected; threads that outlive the interpreter can abort the process.
    """
    gc.collect()
    if distributed.is_initialized():
        distributed.destroy_process_group()


class Accelerator:
    """The device, the precision and the processes of a run.

    Under `torchrun` its processes share every batch; otherwise there is one process.
    """

    def __init__(self, device: str | torch.device | None, precision: str) -> None:
        check_extras()
        wanted = resolve_device(device)
        self.precision, self.shard = precision, Shard()
        launched = distributed.is_available() and distributed.is_torchelastic_launched()
        several = launched and int(os.environ["WORLD_SIZE"]) > 1
        index = int(os.environ["LOCAL_RANK"]) if several else wanted.index or 0
        self.device = torch.device("cuda", index) if wanted.type == "cuda" else wanted
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if several:
            # DDP would import it while it is built, which keeps the group's threads for good.
            import_module("torch.distributed.nn")
            if not distributed.is_initialized():
                distributed.init_process_group("nccl" if wanted.type == "cuda" else "gloo")
                atexit.register(leave_group)
            self.shard = Shard(distributed.get_rank(), distributed.get_world_size())

    @property
    def alone(self) -> bool:
        return self.shard.world == 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.shard.rank == 0

    def place(self, network: nn.Module) -> nn.Module:
        """Move a network to the device and to the precision of its weights; returns what is to be
        called in its stead."""
        network.to(self.device, dtype_of_weights(self.precision))
        plain = self.precision in ("32-true", "tf32")
        return network if plain else InPrecision(network, self.precision)

    def send(self, rows: list[list[float]]) -> Tensor:
        """Copy numbers to the device without waiting for it."""
        numbers = torch.tensor(rows)
        if self.device.type == "cuda":
            numbers = numbers.pin_memory()
        return numbers.to(self.device, non_blocking=True)

    def barrier(self) -> None:
        """Wait for the other processes. Every process must call this."""
        if not self.alone:
            distributed.barrier()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process. Every process must call this."""
        number = torch.tensor(float(flag), device=self.device)
        if not self.alone:
            distributed.all_reduce(number)
        return bool(number > 0)

    def average_(self, tensor: Tensor) -> None:
        """Replace the tensor with its mean over the processes."""
        if not self.alone:
            distributed.all_reduce(tensor)
            tensor /= self.shard.world

    def from_leader(self, value: Any) -> Any:
        """The value of the process that leads."""
        values = [value]
        if not self.alone:
            distributed.broadcast_object_list(values)
        return values[0]


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Allow TF32 products and convolutions inside the block if the precision is `"tf32"`; forbid
    them otherwise."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


@contextmanager
def isolated(device: torch.device, precision: str) -> Iterator[None]:
    """Restore the global state of torch that training changes: generators, TF32, cuDNN tuning.

    cuDNN tries its algorithms when it meets a shape for the first time and keeps the fastest: all
    steps have the same shapes, and its untried choice for few channels can take twice as long.
    """
    devices = [device] if device.type == "cuda" else []
    tuned = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with torch.random.fork_rng(devices=devices), products_in(precision):
            yield
    finally:
        torch.backends.cudnn.benchmark = tuned


def mixed(seed: int, step: int, rank: int) -> int:
    """A 63-bit hash of the three numbers (SplitMix64's finaliser, three times)."""
    value = 0
    for part in (seed, step, rank):
        value = (value + part + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value >> 1


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed torch's default generators before a step: dropout and the like become functions of
    seed, step and process, so that checkpoints need no generator state."""
    value = mixed(seed, step, rank)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)
