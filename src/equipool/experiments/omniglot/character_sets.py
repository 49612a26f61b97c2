"""Sets of drawings of a few characters, of which the number of characters is asked."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Pool(NamedTuple):
    """What sets are drawn from: characters `first` to `first + characters - 1`, each with so many
    `drawings`. Drawing `d` of character `c` is image `c * drawings + d`."""

    first: int
    characters: int
    drawings: int


class CharacterSets(NamedTuple):
    """Sets of images and how many characters are in each."""

    images: Tensor  # [..., set_size], which image
    num_classes: Tensor  # [...], 1 to max_classes


def sample_sets(
    shape: tuple[int, ...],
    pool: Pool,
    generator: torch.Generator,
    *,
    set_size: int = 16,
    max_classes: int = 10,
) -> CharacterSets:
    """Draw sets of characters, on the generator's device and without waiting for it:

    1. the number of characters $k$, uniform in 1 to `max_classes`;
    2. $k$ different characters of the pool, all choices equally likely;
    3. the character of each place: each of the $k$ has one place, and each of the others one of
       the $k$ at random; the places are then shuffled;
    4. the drawing of each place: those of one character are different ones, all choices equally
       likely, unless it has more places than drawings; then they begin again.

    Args:
        shape: of the batch.
        pool: what is drawn from.
        generator: gives the randomness.
        set_size: places in a set, at least `max_classes`.
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
    """Which of its `count [...]` characters is in each place of a set, `[..., set_size]`."""
    shape = (*count.shape, set_size)
    place = torch.arange(set_size, device=count.device)
    count = count.unsqueeze(-1)
    share = torch.rand(shape, generator=generator, device=count.device)
    chosen = torch.minimum((share * count).long(), count - 1)  # a product may be rounded up
    order = torch.rand(shape, generator=generator, device=count.device).argsort(-1)
    return torch.where(place < count, place, chosen).gather(-1, order)


def _repetition(slot: Tensor) -> Tensor:
    """How many places before have the same value, `[..., n] -> [..., n]`."""
    same = slot.unsqueeze(-1) == slot.unsqueeze(-2)
    return same.tril(-1).sum(-1)


def sample_distinct(
    shape: tuple[int, ...], number: int, population: int, generator: torch.Generator
) -> Tensor:
    """Different whole numbers below `population`, `[*shape, number]`; all orders of all choices are
    equally likely.

    The next one is drawn among as many as are left, and raised past those taken before it.
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
