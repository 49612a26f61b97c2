"""Omniglot, 1,623 handwritten characters of 50 alphabets, each drawn by 20 people: its files, the
images as a network sees them, and random sets of them."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipool.extras import check_extras

TRAIN, VALIDATION, TEST = "train", "validation", "test"

# From the repository of Lake, Salakhutdinov and Tenenbaum, "Human-level concept learning through
# probabilistic program induction" (Science 2015).
PUBLISHED = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
PARTS = {
    "images_background.zip": "md5:68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation.zip": "md5:6b91aef0f799c5bb55b94e3f2daec811",
}
PICTURE = re.compile(
    r"images_[a-z]+/([^/]+/[^/]+)/[^/.][^/]*\.png"
)  # part/alphabet/character/drawing

# The drawings of each character, `[num_drawings, size, size]`, uint8, 1 for ink and 0 for paper, by
# its name, "Alphabet/character01"; sorted by name.
Characters = dict[str, Tensor]


def load_omniglot(folder: Path) -> list[Characters]:
    """The two parts of the data set, which share no alphabet, for training and for testing: from
    `omniglot.npz` if the folder has it, else from the official `images_background.zip` and
    `images_evaluation.zip`, which are downloaded if they are missing.

    Both forms give the same data, except for the order of a character's drawings.
    """
    archive = folder / "omniglot.npz"
    if archive.exists():
        return read_archive(archive)
    return [read_pictures(fetch(folder / name, checksum)) for name, checksum in PARTS.items()]


def fetch(file: Path, checksum: str) -> Path:
    """A published file, downloaded if it is missing."""
    if file.exists():
        return file
    url = f"{PUBLISHED}/{file.name}"
    try:
        check_extras("downloading it", {"data": ["pooch"]})
        import pooch

        return Path(pooch.retrieve(url, checksum, file.name, file.parent))
    except (ImportError, OSError, ValueError) as error:
        raise FileNotFoundError(
            f"a file of Omniglot is missing: get {url} and put it at {file}, or give its directory "
            f"with --data-dir or EQUIPOOL_DATA ({error})"
        ) from error


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Name the file in errors: zipfile, numpy and Pillow report damaged files in many ways."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{file} is not Omniglot, or is damaged: {error!r}") from error


def read_archive(file: Path) -> list[Characters]:
    """Read a numpy archive with `images` uint8 `[characters, drawings, size, size]`, 1 for ink,
    and for each character the strings `alphabet`, `character` and `split`, which is `background`
    or `evaluation`. The characters may be in any order. Nothing is unpickled."""
    parts: dict[str, Characters] = {"background": {}, "evaluation": {}}
    with naming(file), file.open("rb") as stream, np.load(stream) as content:
        images, split = content["images"], content["split"]
        names = np.char.add(np.char.add(content["alphabet"], "/"), content["character"])
        if images.dtype != np.uint8 or images.ndim != 4 or images.max() > 1:
            found = f"images is {images.dtype} of shape {images.shape}"
            raise ValueError(f"{found}, expected uint8 with four dimensions, 1 for ink")
        if not len(np.unique(names)) == len(split) == len(images):
            raise ValueError("it has not one name and one split for each character")
        for at in names.argsort():
            parts[split[at]][str(names[at])] = torch.from_numpy(images[at])
    return list(parts.values())


def read_pictures(file: Path) -> Characters:
    """Read one part of the data set as published, a zip file of black on white PNGs such as
    `images_background/Alphabet/character01/0709_01.png`, sorted by name."""
    check_extras(f"reading the pictures in {file}", {"data": ["PIL"]})
    from PIL import Image

    drawings: dict[str, list[np.ndarray]] = {}
    with naming(file), zipfile.ZipFile(file) as archive:
        for name in sorted(archive.namelist()):
            if found := PICTURE.fullmatch(name):
                with Image.open(io.BytesIO(archive.read(name)), formats=["PNG"]) as picture:
                    ink = np.asarray(picture.convert("L")) < 128
                drawings.setdefault(found[1], []).append(ink.astype(np.uint8))
        # one shape for all, which stacking checks
        images = torch.from_numpy(np.stack([np.stack(own) for own in drawings.values()]))
    return dict(zip(drawings, images, strict=True))


class Pool(NamedTuple):
    """The characters that sets are drawn from: `first` to `first + characters - 1`, each with the
    same number of `drawings`. Drawing `d` of character `c` is image `c * drawings + d`."""

    first: int
    characters: int
    drawings: int


class CharacterSets(NamedTuple):
    """Sets of images and the number of characters in each."""

    images: Tensor  # [..., set_size], positions of images
    num_classes: Tensor  # [...], 1 to max_classes


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


# Unbounded: a captured step reads this memory for as long as it lives.
@cache
def character_images(
    folder: Path, size: int, validation_characters: int, device: torch.device
) -> CharacterImages:
    """The data set in a folder, as images of `size` times `size` on the device.

    Characters of the official background set are for training, except for some that are held out
    for validation, always the same ones (see `held_out`); those of the evaluation set are for
    testing.
    """
    background, evaluation = load_omniglot(folder)
    held = held_out(background, validation_characters)
    parts = {
        TRAIN: {name: images for name, images in background.items() if name not in held},
        VALIDATION: {name: images for name, images in background.items() if name in held},
        TEST: evaluation,
    }
    pools, names, pixels = dict[str, Pool](), list[str](), []
    for part, characters in parts.items():
        images = torch.stack([shrink(own, size) for own in characters.values()])
        pools[part] = Pool(len(names), *images.shape[:2])
        names += characters
        pixels.append(images.flatten(0, 1))
    return CharacterImages(torch.cat(pixels).to(device), pools, tuple(names))


def held_out(names: Collection[str], number: int) -> set[str]:
    """Names of the held-out characters: those with the smallest BLAKE2b digests. Only the names
    decide, so every run holds out the same characters, whatever the file format."""
    if number >= len(names):
        raise ValueError(f"validation_characters is {number}, expected fewer than {len(names)}")
    return set(sorted(names, key=lambda name: hashlib.blake2b(name.encode()).digest())[:number])


def shrink(images: Tensor, size: int) -> Tensor:
    r"""Images of `size` times `size` pixels, each pixel the average over the area it covers,

    $$Y = R X R^\top,$$

    where $R_{ab}$ is the share of new pixel $a$ that lies in old pixel $b$, along one side: from
    `[..., S, S]`, uint8 with 1 for ink, to `[..., size, size]`, uint8 with 255 for all ink.

    Example:
        >>> shrink(torch.tensor([[0, 1, 1], [0, 1, 1], [0, 0, 0]], dtype=torch.uint8), 1)
        tensor([[113]], dtype=torch.uint8)
    """
    weights = area_weights(images.shape[-1], size)
    return (weights @ images.float() @ weights.T).mul_(255).round_().to(torch.uint8)


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


def sample_sets(
    shape: tuple[int, ...], pool: Pool, generator: torch.Generator, *,
    set_size: int = 16, max_classes: int = 10,
) -> CharacterSets:  # fmt: skip
    """Draw sets of characters on the generator's device, without synchronising:

    1. the number of characters $k$, uniform in 1 to `max_classes`;
    2. $k$ different characters of the pool, all choices equally likely;
    3. the character of each place: each of the $k$ gets one place, every other place gets one of
       the $k$ at random; the places are then shuffled;
    4. the drawing of each place: drawings of one character are distinct, all choices equally
       likely; a character with more places than drawings starts over.

    `shape` is that of the batch; `set_size` must be at least `max_classes`.

    Example:
        >>> sets = sample_sets((5,), Pool(0, 30, 20), torch.Generator().manual_seed(0))
        >>> sets.images.shape, sets.num_classes.shape
        (torch.Size([5, 16]), torch.Size([5]))
        >>> all(len(set(s.tolist())) == k for s, k in zip(sets.images // 20, sets.num_classes))
        True
    """
    device = generator.device
    count = torch.randint(1, max_classes + 1, shape, generator=generator, device=device)
    characters = pool.first + sample_distinct(shape, max_classes, pool.characters, generator)
    slot = _slots(count, set_size, generator)
    sizes = (*shape, max_classes, pool.drawings)
    orders = torch.rand(sizes, generator=generator, device=device).argsort(-1)
    same = slot.unsqueeze(-1) == slot.unsqueeze(-2)
    repetition = same.tril(-1).sum(-1)  # how many earlier places have the same character
    position = slot * pool.drawings + repetition % pool.drawings
    drawing = orders.flatten(-2).gather(-1, position)
    return CharacterSets(characters.gather(-1, slot) * pool.drawings + drawing, count)


def _slots(count: Tensor, set_size: int, generator: torch.Generator) -> Tensor:
    """Which of its `count [...]` characters each place of a set has, `[..., set_size]`."""
    shape = (*count.shape, set_size)
    place = torch.arange(set_size, device=count.device)
    count = count.unsqueeze(-1)
    share = torch.rand(shape, generator=generator, device=count.device)
    chosen = torch.minimum((share * count).long(), count - 1)  # the product may round up
    order = torch.rand(shape, generator=generator, device=count.device).argsort(-1)
    return torch.where(place < count, place, chosen).gather(-1, order)


def sample_distinct(
    shape: tuple[int, ...], number: int, population: int, generator: torch.Generator
) -> Tensor:
    """Distinct integers below `population`, `[*shape, number]`; all orders of all choices are
    equally likely.

    Each is drawn from the number of integers left, then shifted past those taken before it.
    """
    device = generator.device
    taken = torch.empty((*shape, 0), dtype=torch.long, device=device)
    drawn = []
    for position in range(number):
        value = torch.randint(population - position, shape, generator=generator, device=device)
        for smaller in taken.unbind(-1):
            value = value + (value >= smaller)
        drawn.append(value)
        taken = torch.cat([taken, value.unsqueeze(-1)], dim=-1).sort(-1).values
    return torch.stack(drawn, dim=-1)
