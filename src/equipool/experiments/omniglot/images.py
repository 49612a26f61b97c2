"""The images of the characters: shrunk, on the device, split for training and testing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from equipool.experiments.data import data_folder
from equipool.experiments.omniglot.files import Characters, load_omniglot
from equipool.experiments.omniglot.sets import Pool

TRAIN, VALIDATION, TEST = "train", "validation", "test"
IMAGES_AT_ONCE = 4096


@dataclass(frozen=True)
class CharacterImages:
    """Images `[num_images, size, size]`, uint8, 255 for ink; the pool that sets of each part are
    drawn from; and the characters' names, in the order of the images."""

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

    Characters of the official background set are for training, except for some that are held out
    for validation; those of the evaluation set are for testing.

    Args:
        size: of the images.
        validation_characters: how many to hold out; always the same ones, see `held_out`.
        device: device of the images.
    """
    return _load(data_folder().absolute(), size, validation_characters, device)


def held_out(names: tuple[str, ...], number: int) -> list[int]:
    """Positions of the held-out characters: those whose names have the smallest BLAKE2b digests.
    Only the names decide, so every run holds out the same characters, whatever the file format."""
    if not 0 < number < len(names):
        raise ValueError(
            f"validation_characters is {number}, expected 1 to {len(names) - 1}, as there are "
            f"{len(names)} characters in the background set"
        )
    digests = [hashlib.blake2b(name.encode()).digest() for name in names]
    return sorted(sorted(range(len(names)), key=lambda position: digests[position])[:number])


# Unbounded: a captured step reads this memory for as long as it lives.
@cache
def _load(
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
    return _join(parts, size, device)


def _join(parts: dict[str, Characters], size: int, device: torch.device) -> CharacterImages:
    pools: dict[str, Pool] = {}
    first = 0
    for part, characters in parts.items():
        pools[part] = Pool(first, len(characters), characters.images.shape[1])
        first += len(characters)
    pixels = torch.cat([shrink(part.images, size).flatten(0, 1) for part in parts.values()])
    names = tuple(name for part in parts.values() for name in part.names)
    return CharacterImages(pixels.to(device), pools, names)


def shrink(images: Tensor, size: int) -> Tensor:
    r"""Images of `size` times `size` pixels, each pixel the average over the area it covers,

    $$Y = R X R^\top,$$

    where $R_{ab}$ is the share of new pixel $a$ that lies in old pixel $b$, along one side.

    Args:
        images: `[..., S, S]`, uint8 with 1 for ink.
        size: at most `S`.

    Returns:
        `[..., size, size]`, uint8: the share of ink, 255 for all.

    Example:
        >>> shrink(torch.tensor([[0, 1, 1], [0, 1, 1], [0, 0, 0]], dtype=torch.uint8), 1)
        tensor([[113]], dtype=torch.uint8)
    """
    source = images.shape[-1]
    if not 1 <= size <= source:
        raise ValueError(f"size is {size}, expected 1 to {source}, the size of the images")
    weights = area_weights(source, size)
    flat = images.reshape(-1, source, source)
    shrunk = [
        (weights @ part.float() @ weights.T).mul_(255).round_().to(torch.uint8)
        for part in flat.split(IMAGES_AT_ONCE)
    ]
    return torch.cat(shrunk).reshape(*images.shape[:-2], size, size)


def area_weights(source: int, target: int) -> Tensor:
    """Divide a line into `target` equal intervals and into `source` equal intervals: the share of
    each of the first that lies in each of the second, `[target, source]`. Rows sum to 1.

    Example:
        >>> area_weights(3, 2)
        tensor([[0.6667, 0.3333, 0.0000],
                [0.0000, 0.3333, 0.6667]])
    """
    new = torch.arange(target + 1, dtype=torch.float64) * (source / target)
    old = torch.arange(source + 1, dtype=torch.float64)
    low = torch.maximum(new[:-1, None], old[None, :-1])
    high = torch.minimum(new[1:, None], old[None, 1:])
    return ((high - low).clamp(min=0) * (target / source)).float()
