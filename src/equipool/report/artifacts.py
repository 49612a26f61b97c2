"""Tables and pictures."""

from __future__ import annotations

from dataclasses import dataclass

# A float is a fraction, shown in percent; an int is a count.
Cell = str | int | float


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row names it."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def texts(self) -> list[list[str]]:
        """The rows as text."""
        return [[cell_text(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True)
class Picture:
    """A PNG picture and its caption."""

    caption: str
    png: bytes


def cell_text(cell: Cell) -> str:
    """A cell as text.

    Example:
        >>> cell_text(0.256), cell_text(1200), cell_text("all")
        ('25.6 %', '1,200', 'all')
    """
    if isinstance(cell, float):
        return f"{100 * cell:.1f} %"
    return f"{cell:,}" if isinstance(cell, int) else cell
