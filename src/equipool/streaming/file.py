"""Streams on disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipool.steps import Steps
from equipool.streaming.entries import Entries, entries_of

FORMAT = "equipool stream 1"
RESULTS = "result."  # the results' names begin with it


class Saved(NamedTuple):
    """What a file holds."""

    x: Tensor  # [N, C] elements in set order
    ids: Tensor  # [N]
    counts: Tensor  # [B] elements of each set
    uses: Tensor  # [num_entries] of the table of ids
    results: dict[str, Tensor]  # [B, ...] each, by their names


def write(path: str | os.PathLike[str], content: Saved, made_by: str) -> None:
    """Write a file in one go: it is there whole, or as it was before."""
    _check_installed()
    from safetensors.torch import save_file

    path = Path(path)
    tensors = content._asdict()
    tensors |= {RESULTS + name: rows for name, rows in tensors.pop("results").items()}
    partial = path.with_name(f"{path.name}.part")
    metadata = {"format": FORMAT, "made_by": made_by}
    try:
        save_file({name: _own(tensor) for name, tensor in tensors.items()}, partial, metadata)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # it holds the elements


def read(path: str | os.PathLike[str], device: torch.device) -> tuple[Saved, str]:
    """What `write` wrote, and by which layer it was made. Elements and results are put on the
    device."""
    _check_installed()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a stream: its format is {metadata.get('format')!r}, "
                         f"expected {FORMAT!r}")  # fmt: skip
    if not set(Saved._fields[:-1]) <= set(tensors):
        raise ValueError(f"{path} is damaged: it lacks {set(Saved._fields[:-1]) - set(tensors)}")
    results = {name.removeprefix(RESULTS): tensors.pop(name).to(device)
               for name in list(tensors) if name.startswith(RESULTS)}  # fmt: skip
    content = Saved(**tensors, results=results)
    _check(path, content)
    return content._replace(x=content.x.to(device)), metadata["made_by"]


def fingerprint(layer: nn.Module, steps: Steps) -> str:
    """A checksum of a layer's settings and values, which determine its outputs."""
    _check_installed()
    from safetensors.torch import save

    values = {name: value for name, value in layer.state_dict().items() if torch.is_tensor(value)}
    settings = f"{layer!r} {steps!r}".encode()
    data = save({name: _own(value) for name, value in values.items()})
    return hashlib.sha256(settings + data).hexdigest()


def _own(tensor: Tensor) -> Tensor:
    """On the CPU, in memory of its own."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _check(path: str | os.PathLike[str], content: Saved) -> None:
    """Check that the parts of a file belong together."""
    x, ids, counts, uses, results = content
    entries = entries_of(ids)
    known = bool((entries < len(uses)).all())
    if (
        not len(x) == len(ids) == int(counts.sum())
        or any(len(rows) != len(counts) for rows in results.values())
        or not known
        or len(entries.unique()) != len(ids)
        or not torch.equal(Entries(uses).ids(entries), ids)
    ):
        raise ValueError(f"{path} is damaged: its elements, ids and sets do not match")


def _check_installed() -> None:
    try:
        import safetensors  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'saving a stream needs {error.name}: pip install "equipool[train]"', name=error.name
        ) from error
