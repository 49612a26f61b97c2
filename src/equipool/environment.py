"""Versions, devices and date, as every record has them."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("torch", "torch_geometric", "triton", "numpy", "safetensors")


def versions() -> dict[str, str]:
    """Versions of Python, this package and the packages it computes with."""
    import equipool

    found = {"python": platform.python_version(), "equipool": equipool.__version__}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def now() -> str:
    """Date and time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def leads() -> bool:
    """Whether this is the first of the processes that torchrun started, which prints and writes."""
    return int(os.environ.get("RANK", "0")) == 0


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device with this name; None picks a GPU if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = str(device).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device is {str(device)!r}, expected 'cpu' or 'cuda'")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no CUDA device")
    return torch.device(device)


def hardware(device: torch.device) -> dict[str, str | int]:
    """CPU, cores, threads, and the GPU if the device is one."""
    found: dict[str, str | int] = {
        "device": device.type,
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"gpu": properties.name, "gpu_memory_bytes": properties.total_memory}
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
