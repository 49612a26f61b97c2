"""Prepared molecules in one safetensors file, with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipool.experiments.molecules.data import featurize
from equipool.experiments.molecules.data.featurize import Array, Chunk, Problem, installed_versions
from equipool.experiments.molecules.data.molecule_set import PARTS, MoleculeSet, molecule_set
from equipool.experiments.molecules.data.sources import Contents, MoleculeSource
from equipool.experiments.molecules.data.splits import GroupIndex

FORMAT = 2  # of the file
MISSING = 255  # a missing label of a classification
AS_IN_CHUNKS = ("source_rows", "num_atoms", "num_bonds", "atoms", "bonds")


class UnusableFileError(ValueError):
    """A cache file is damaged, outdated or made from another source."""


@dataclass(frozen=True)
class MoleculeCache:
    """A file of prepared molecules."""

    path: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the molecules are and what they were made from."""
        return self._content[0]

    def check(self, fingerprint: dict[str, Any] | None = None) -> None:
        """Raise `UnusableFileError` if the file is damaged, outdated, or made from a source with
        another fingerprint."""
        if fingerprint is not None and self.about.get("source") != fingerprint:
            raise UnusableFileError(f"{self.path} was made from another source or recipe")
        found = self.about.get("format"), self.about.get("features")
        if found != (FORMAT, featurize.FEATURES_VERSION):
            expected = f"expected format {FORMAT} and features {featurize.FEATURES_VERSION}"
            wrong = f"{expected}, found {found[0]} and {found[1]}"
            raise UnusableFileError(f"{self.path} has another version: {wrong}")
        about, checksum, tensors = self._content
        if _checksum(about, tensors) != checksum:
            raise UnusableFileError(f"{self.path} is damaged: its checksum does not match")

    def molecules(self) -> MoleculeSet:
        """The molecules. The tensors of atoms and bonds are memory-mapped."""
        tensors = self._content[2]
        arrays = tensors | {"ends": tensors["ends"].T, "labels": _decode_labels(tensors["labels"])}
        names = tuple(self.about["label_names"])
        return molecule_set(arrays, tensors["parts"], names, self.about["kind"])

    def part_sizes(self) -> dict[str, int]:
        """The number of molecules in each split part."""
        parts = self._content[2]["parts"]
        return {name: int((parts == at).sum()) for at, name in enumerate(PARTS)}

    def problems(self) -> tuple[Problem, ...]:
        """The molecules that RDKit rejected."""
        text = self._content[2]["problems"].numpy().tobytes()
        return tuple(Problem(**found) for found in json.loads(text))

    def version_differences(self) -> str:
        """The packages that had other versions when the file was made.

        They are no reason to make it again: what is read of a molecule seldom changes.
        """
        then = self.about.get("made_with", {})
        now = installed_versions().items()
        changed = [(name, version) for name, version in now if then.get(name, version) != version]
        return ", ".join(f"{name} {then[name]} (now {version})" for name, version in changed)

    @cached_property
    def _content(self) -> tuple[dict[str, Any], str, dict[str, Tensor]]:
        """What the file says about itself, its checksum, and its tensors, which are mapped."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = json.loads(metadata["about"])
            if not isinstance(about, dict):
                raise TypeError("its metadata is not a JSON object")
            return about, metadata["sha256"], tensors
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise UnusableFileError(f"{self.path} is damaged: {error}") from error


def write_cache(
    path: Path, scratch: Path, source: MoleculeSource, contents: Contents, chunks: Iterable[Chunk]
) -> tuple[Problem, ...]:
    """Write chunks as they arrive to `path`, and return the problems with them.

    Arrays grow in files of their own in the empty folder `scratch`, which are then mapped into
    memory and handed to safetensors. Only the groups of the split stay in memory: 1.6 million
    molecules, a file of 1 GiB, took 70 MiB, beside mapped pages that the system can drop.
    """
    from safetensors.torch import save_file

    about = {
        "format": FORMAT,
        "features": featurize.FEATURES_VERSION,
        "source": source.fingerprint(),
        "label_names": list(contents.label_names),
        "kind": contents.kind,
        "made_with": installed_versions(),
    }
    groups, problems, arrays = GroupIndex(), list[Problem](), dict[str, Array]()
    for chunk in chunks:
        arrays = {name: getattr(chunk, name) for name in AS_IN_CHUNKS} | {
            "ends": chunk.ends.T, "labels": _encode_labels(chunk.labels, contents.kind)
        }  # fmt: skip
        _append(scratch, arrays)
        groups.extend(chunk.groups)
        problems += chunk.problems
    text = bytearray(json.dumps([asdict(problem) for problem in problems]).encode())
    parts = _assign_parts(source, groups, problems)
    last = {"parts": parts, "problems": np.frombuffer(text, np.uint8)}
    _append(scratch, last)
    tensors = {name: _mapped(scratch / name, rows) for name, rows in (arrays | last).items()}
    metadata = {"about": json.dumps(about), "sha256": _checksum(about, tensors)}
    save_file(tensors, path, metadata)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return tuple(problems)


def _append(folder: Path, arrays: dict[str, Array]) -> None:
    for name, rows in arrays.items():
        with (folder / name).open("ab") as file:
            rows.tofile(file)


def _mapped(path: Path, like: Array) -> Tensor:
    """The array in a file, of rows like these, as a tensor whose pages are the file's: the system
    can drop them."""
    empty = torch.from_numpy(like[:0])
    size = path.stat().st_size // empty.itemsize
    if not size:
        return empty
    flat = torch.from_file(str(path), shared=True, size=size, dtype=empty.dtype)
    return flat.view(-1, *empty.shape[1:])


def _checksum(about: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """SHA-256 of everything in the file."""
    forms = {}
    for name, tensor in tensors.items():
        digest = hashlib.sha256(tensor.numpy().reshape(-1).data).hexdigest()
        forms[name] = [str(tensor.dtype), list(tensor.shape), digest]
    return hashlib.sha256(json.dumps([about, forms], sort_keys=True).encode()).hexdigest()


def _assign_parts(source: MoleculeSource, groups: GroupIndex, problems: list[Problem]) -> Array:
    if not len(groups):
        reason = f" ({problems[0].reason})" if problems else ""
        raise ValueError(f"{source.location}: no molecule could be read{reason}")
    parts = source.assign(groups)
    if not (parts == PARTS.index("train")).any():
        advice = "try --split random or add rows"
        raise ValueError(f"{source.location}: the split left no training molecules; {advice}")
    return parts


def _encode_labels(labels: Array, kind: str) -> Array:
    """Labels of a classification take a byte each."""
    if kind == "regression":
        return labels
    if not (np.isnan(labels) | (labels == 0) | (labels == 1)).all():
        raise ValueError("labels: expected 0, 1 or missing for classification, found another value")
    return np.nan_to_num(labels, nan=MISSING).astype(np.uint8)


def _decode_labels(labels: Tensor) -> Tensor:
    if labels.dtype == torch.float32:
        return labels
    return labels.float().masked_fill_(labels == MISSING, torch.nan)
