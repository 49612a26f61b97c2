"""The images of the characters, small, on the device, in parts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from equipool.experiments.data_folder import data_folder
from equipool.experiments.omniglot.character_sets import Pool
from equipool.experiments.omniglot.images import Characters, load_omniglot, shrink

TRAIN, VALIDATION, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class CharacterImages:
    """Images `[num_images, size, size]`, uint8, 255 for ink; what sets of each part are drawn from;
    and the characters' names, in the order of the images."""

    pixels: Tensor
    pools: dict[str, Pool]
    names: tuple[str, ...]

    def fingerprint(self) -> str:
        """A digest of names and images, in their order."""
        digest = hashlib.blake2b("\n".join(self.names).encode(), digest_size=8)
        digest.update(self.pixels.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def character_images(
    size: int, validation_characters: int, device: torch.device
) -> CharacterImages:
    """The data set in `data_folder()`, as images of `size` times `size`.

    Characters of the official background set are to be trained on, but for some that are held out
    for validation; those of the evaluation set are to be tested on.

    Args:
        size: of the images.
        validation_characters: how many are held out; always the same ones, see `held_out`.
        device: where the images are.
    """
    return _kept(data_folder().absolute(), size, validation_characters, device)


def held_out(names: tuple[str, ...], number: int) -> list[int]:
    """Positions of the characters that are held out: those whose names have the smallest digests
    (BLAKE2b). Names alone decide, so that every run holds out the same, from whatever files."""
    if not 0 < number < len(names):
        raise ValueError(
            f"validation_characters is {number}, expected 1 to {len(names) - 1}, as there are "
            f"{len(names)} characters in the background set"
        )
    digests = [hashlib.blake2b(name.encode()).digest() for name in names]
    return sorted(sorted(range(len(names)), key=lambda position: digests[position])[:number])


# Without a bound: a captured step reads this memory for as long as it is run.
@cache
def _kept(
    folder: Path, size: int, validation_characters: int, device: torch.device
) -> CharacterImages:
    data = load_omniglot(folder)
    held = held_out(data.background.names, validation_characters)
    rest = sorted(set(range(len(data.background))) - set(held))
    parts = {
        TRAIN: data.background.take(rest),
        VALIDATION: data.background.take(held),
        TEST: data.evaluation,
    }
    return _joined(parts, size, device)


def _joined(parts: dict[str, Characters], size: int, device: torch.device) -> CharacterImages:
    pools: dict[str, Pool] = {}
    first = 0
    for part, characters in parts.items():
        pools[part] = Pool(first, len(characters), characters.images.shape[1])
        first += len(characters)
    pixels = torch.cat([shrink(part.images, size).flatten(0, 1) for part in parts.values()])
    names = tuple(name for part in parts.values() for name in part.names)
    return CharacterImages(pixels.to(device), pools, names)
