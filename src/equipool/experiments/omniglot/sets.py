"""Random sets of drawings of a few characters."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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


def sample_sets(
    shape: tuple[int, ...],
    pool: Pool,
    generator: torch.Generator,
    *,
    set_size: int = 16,
    max_classes: int = 10,
) -> CharacterSets:
    """Draw sets of characters on the generator's device, without synchronising:

    1. the number of characters $k$, uniform in 1 to `max_classes`;
    2. $k$ different characters of the pool, all choices equally likely;
    3. the character of each place: each of the $k$ gets one place, every other place gets one of
       the $k$ at random; the places are then shuffled;
    4. the drawing of each place: drawings of one character are distinct, all choices equally
       likely; a character with more places than drawings starts over.

    Args:
        shape: batch shape.
        pool: the characters to draw from.
        generator: source of randomness.
        set_size: images per set, at least `max_classes`.
        max_classes: the largest number of characters.

    Example:
        >>> sets = sample_sets((5,), Pool(0, 30, 20), torch.Generator().manual_seed(0))
        >>> sets.images.shape, sets.num_classes.shape
        (torch.Size([5, 16]), torch.Size([5]))
        >>> all(len(set(s.tolist())) == k for s, k in zip(sets.images // 20, sets.num_classes))
        True
    """
    if not 1 <= max_classes <= min(set_size, pool.characters):
        raise ValueError(
            f"max_classes is {max_classes}, expected 1 to {min(set_size, pool.characters)}: sets "
            f"of {set_size} are drawn from {pool.characters} characters"
        )
    device = generator.device
    count = torch.randint(1, max_classes + 1, shape, generator=generator, device=device)
    characters = pool.first + sample_distinct(shape, max_classes, pool.characters, generator)
    slot = _slots(count, set_size, generator)
    orders = torch.rand(
        (*shape, max_classes, pool.drawings), generator=generator, device=device
    ).argsort(-1)
    position = slot * pool.drawings + _repetition(slot) % pool.drawings
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


def _repetition(slot: Tensor) -> Tensor:
    """How many earlier places have the same value, `[..., n] -> [..., n]`."""
    same = slot.unsqueeze(-1) == slot.unsqueeze(-2)
    return same.tril(-1).sum(-1)


def sample_distinct(
    shape: tuple[int, ...], number: int, population: int, generator: torch.Generator
) -> Tensor:
    """Distinct integers below `population`, `[*shape, number]`; all orders of all choices are
    equally likely.

    Each is drawn from the number of integers left, then shifted past those taken before it.
    """
    taken = torch.empty((*shape, 0), dtype=torch.long, device=generator.device)
    drawn = []
    for position in range(number):
        value = torch.randint(
            population - position, shape, generator=generator, device=generator.device
        )
        for smaller in taken.unbind(-1):
            value = value + (value >= smaller)
        drawn.append(value)
        taken = torch.cat([taken, value.unsqueeze(-1)], dim=-1).sort(-1).values
    return torch.stack(drawn, dim=-1)
