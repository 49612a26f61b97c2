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
from torch import Tensor, distributed

from equipool import extras
from equipool.environment import resolve_device
from equipool.training.config import Shard, seed_of


def check_extras() -> None:
    """Raise an ImportError with the command to run if a package is missing."""
    extras.check_extras("training", {"train": ("filelock", "safetensors")})


def leave_group() -> None:
    """End the process group and its threads, which would abort the process if they outlived the
    interpreter. A network that is distributed is part of a cycle, which keeps the group alive."""
    gc.collect()
    if distributed.is_initialized():
        distributed.destroy_process_group()


class Accelerator:
    """The device and the processes of a run.

    Under `torchrun` its processes share every batch; otherwise there is one process.
    """

    def __init__(self, device: str | torch.device | None) -> None:
        wanted = resolve_device(device)
        self.shard = Shard()
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


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Autocast to bfloat16 inside the block if the precision is `"bf16-mixed"`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")


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


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed torch's default generators before a step: dropout and the like become functions of
    seed, step and process, so that checkpoints need no generator state."""
    value = seed_of("step", seed, step, rank)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)
