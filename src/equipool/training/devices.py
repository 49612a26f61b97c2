"""Device, precision, processes, random numbers and clock of runs, on top of Lightning's Fabric."""

from __future__ import annotations

import atexit
import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from equipool import extras
from equipool.training.folder import RunState
from equipool.training.progress import Progress
from equipool.training.task import Shard

_MASK = (1 << 64) - 1


class OutOfMemoryError(MemoryError):
    """Training needs more memory than there is."""


def check_extras() -> None:
    """Raise an ImportError with the command to run if a package is missing."""
    extras.check_extras("training", {"train": ("lightning", "safetensors")})


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
        from lightning.fabric import Fabric

        wanted = resolve_device(device)
        launched = distributed.is_available() and distributed.is_torchelastic_launched()
        place: dict[str, Any] = {"devices": [wanted.index or 0] if wanted.type == "cuda" else 1}
        if launched and int(os.environ["WORLD_SIZE"]) > 1:
            nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1))
            place = {"devices": int(os.environ["LOCAL_WORLD_SIZE"]), "num_nodes": nodes}
            place["strategy"] = "ddp"
            atexit.register(leave_group)
        in_fabric: Any = "32-true" if precision == "tf32" else precision
        self.fabric: Any = Fabric(accelerator=wanted.type, precision=in_fabric, **place)
        self.fabric.launch()
        if precision == "64-true":  # Fabric would round the network's outputs to float32
            conversion: Any = self.fabric.strategy.precision
            conversion.convert_output = lambda outputs: outputs
        self.precision = precision
        self.device: torch.device = self.fabric.device
        self.shard = Shard(self.fabric.global_rank, self.fabric.world_size)

    @property
    def alone(self) -> bool:
        return self.shard.world == 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.shard.rank == 0

    def send(self, rows: list[list[float]]) -> torch.Tensor:
        """Copy numbers to the device without waiting for it."""
        numbers = torch.tensor(rows)
        if self.device.type == "cuda":
            numbers = numbers.pin_memory()
        return numbers.to(self.device, non_blocking=True)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Wait for the other processes. Every process must call this."""
        if not self.alone:
            self.fabric.barrier()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process. Every process must call this."""
        if self.alone:
            return flag
        number = torch.tensor(float(flag), device=self.device)
        return bool(self.fabric.all_reduce(number, reduce_op="sum") > 0)

    def average_(self, tensor: torch.Tensor) -> None:
        """Replace the tensor with its mean over the processes."""
        if not self.alone:
            tensor.copy_(self.fabric.all_reduce(tensor.clone(), reduce_op="mean"))

    def from_leader(self, value: Any) -> Any:
        """The value of the process that leads."""
        return value if self.alone else self.fabric.broadcast(value)


def dtype_of_weights(precision: str) -> torch.dtype:
    return {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)


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


@contextmanager
def clear_memory_errors(advice: str) -> Iterator[None]:
    """Turn the ways in which torch and numpy run out of memory into an `OutOfMemoryError`."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        signs = ("out of memory", "not enough memory", "allocate memory", "overflow")
        if isinstance(error, RuntimeError) and not any(sign in text for sign in signs):
            raise
        reason = text.splitlines()[0] if text else "allocation failed"
        raise OutOfMemoryError(f"out of memory: {advice}. ({reason})") from error


def mixed(seed: int, step: int, rank: int) -> int:
    """A 63-bit hash of the three numbers (SplitMix64's finaliser, three times)."""
    value = 0
    for part in (seed, step, rank):
        value = (value + part + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value >> 1


class StepRandomness:
    """Seeds torch's default generators before each step.

    Dropout and the like become functions of seed, step and process. Checkpoints need no generator
    state, and runs that take turns do not disturb each other. On a GPU each run has its own
    generator state: a CUDA graph reads its seed from the state it was recorded with, and graphs
    that run at the same time must not share one.
    """

    def __init__(self, seed: int, rank: int, device: torch.device) -> None:
        self.seed, self.rank = seed, rank
        self._generator: torch.Generator | None = None
        if device.type == "cuda":
            self._generator = torch.cuda.default_generators[device.index or 0]
            self._state = self._generator.clone_state()

    def __call__(self, step: int) -> None:
        value = mixed(self.seed, step, self.rank)
        torch.default_generator.manual_seed(value)
        if self._generator is not None:
            self._generator.graphsafe_set_state(self._state)
            self._generator.manual_seed(value)


@dataclass
class Session:
    """What runs that are trained together share."""

    accelerator: Accelerator
    progress: Progress
    num_runs: int = 1
    evaluation_seconds: float = 0.0  # of all of them


class Clock:
    """Measures `state.seconds` and `state.evaluation_seconds`, from `start` on.

    While one of several runs is evaluated, none of them trains: the time counts as evaluation for
    all of them. The device is waited for first.
    """

    def __init__(self, state: RunState, session: Session) -> None:
        self.state, self.session = state, session
        self.start()

    def start(self) -> None:
        self._last = self._saved = time.perf_counter()
        self._evaluated = self.session.evaluation_seconds
        self._lap = (self.state.step, self.state.training_seconds)

    def read(self) -> None:
        """Wait for the device and take the time."""
        device = self.session.accelerator.device
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        now = time.perf_counter()
        self.state.seconds += now - self._last
        self.state.evaluation_seconds += self.session.evaluation_seconds - self._evaluated
        self._last, self._evaluated = now, self.session.evaluation_seconds

    def lap(self) -> float:
        """Steps per second of training since the last lap."""
        self.read()
        step, seconds = self._lap
        self._lap = (self.state.step, self.state.training_seconds)
        return (self._lap[0] - step) / max(self._lap[1] - seconds, 1e-9)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Time inside the block counts as evaluation."""
        self.read()
        before = self.state.seconds
        yield
        self.read()
        seconds = self.state.seconds - before
        self.session.evaluation_seconds += seconds
        self.state.evaluation_seconds += seconds
        self._evaluated = self.session.evaluation_seconds

    def saved(self) -> None:
        self._saved = time.perf_counter()

    def since_saved(self) -> float:
        return time.perf_counter() - self._saved
