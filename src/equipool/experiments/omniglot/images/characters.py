"""Drawings of characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Characters:
    """Characters, each drawn as often as the others.

    Args:
        names: of the characters, `"Alphabet/character01"`, each once and in order.
        images: `[num_characters, num_drawings, size, size]`, uint8, 1 for ink and 0 for paper.
    """

    names: tuple[str, ...]
    images: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.shape[2] != self.images.shape[3]:
            raise ValueError(
                f"images has shape {tuple(self.images.shape)}, expected "
                "[characters, drawings, size, size]"
            )
        if len(self.names) != len(self.images):
            raise ValueError(f"there are {len(self.names)} names for {len(self.images)} characters")
        if list(self.names) != sorted(set(self.names)):
            raise ValueError("names is out of order or has a name twice, expected each once")

    def __len__(self) -> int:
        return len(self.names)

    def take(self, positions: Sequence[int]) -> Characters:
        """The characters at these positions, which ascend."""
        return Characters(
            tuple(self.names[position] for position in positions), self.images[list(positions)]
        )


@dataclass(frozen=True)
class Omniglot:
    """The two parts of the data set, which share no alphabet: `background`, to learn from, and
    `evaluation`, to be tested on."""

    background: Characters
    evaluation: Characters

    def __post_init__(self) -> None:
        if self.background.images.shape[1:] != self.evaluation.images.shape[1:]:
            raise ValueError(
                f"background has drawings of shape {tuple(self.background.images.shape[1:])} and "
                f"evaluation of {tuple(self.evaluation.images.shape[1:])}, expected the same"
            )
        shared = set(self.background.names) & set(self.evaluation.names)
        if shared:
            raise ValueError(f"{min(shared)} is in both parts, expected each character in one")
