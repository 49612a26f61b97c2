"""The result of a comparison, as numbers and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equipool.comparison.agreement import Agreement
from equipool.comparison.cost import Seconds

MEBIBYTE = 2**20
HEADINGS = (
    "way", "cosine", "error", "cosine of x", "error of x", "ms", "fastest-slowest", "MiB",
    "converged", "fell back",
)  # fmt: skip


@dataclass(frozen=True)
class GradientRow:
    """One way to differentiate."""

    way: str
    """The given name, or the method's repr."""

    parameters: Agreement | None
    """Of the gradient by all learned parameters; None where the layer has none."""

    x: Agreement
    """Of the gradient by the elements."""

    seconds: Seconds
    """Forward and backward."""

    peak_bytes: int
    """The most that tensors held during forward and backward, beyond what was held before."""

    converged: float
    """Fraction of the sets whose residual is within the layer's tolerance."""

    fallback: float | None
    """Fraction of the sets whose gradient is not the implicit one; None for other ways."""

    def cells(self) -> list[str]:
        """As text, in the order of `HEADINGS`."""
        milliseconds = [1000 * s for s in (self.seconds.fastest, self.seconds.slowest)]
        return [
            self.way,
            *_agreement_cells(self.parameters),
            *_agreement_cells(self.x),
            three_digits(1000 * self.seconds.median),
            "-".join(map(three_digits, milliseconds)),
            three_digits(self.peak_bytes / MEBIBYTE),
            percent(self.converged),
            "" if self.fallback is None else percent(self.fallback),
        ]


@dataclass(frozen=True)
class GradientComparison:
    """The result of `compare_gradients`. `print` shows it as a table."""

    rows: tuple[GradientRow, ...]
    setting: str
    """What was compared: sizes, steps, device and dtype."""

    def __str__(self) -> str:
        table = [list(HEADINGS), *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join([self.setting, "", *(_aligned(line, widths) for line in table)])

    def markdown(self) -> str:
        """The same as a Markdown table."""
        lines = [list(HEADINGS), ["---", *["--:"] * (len(HEADINGS) - 1)]]
        lines += [[f"`{way}`", *rest] for way, *rest in (row.cells() for row in self.rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def as_dict(self) -> dict[str, Any]:
        """Numbers and text alone."""
        return asdict(self)

    def plot(self, path: str | Path) -> None:
        """Draw error, time and memory of each method to a file; its suffix chooses the format.
        Needs matplotlib."""
        try:
            from equipool.comparison.picture import draw
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f'plot needs {error.name}: pip install "equipool[report]"', name=error.name
            ) from error
        draw(self, Path(path))


def three_digits(value: float) -> str:
    """A number as short as it can be read.

    Example:
        >>> three_digits(0.01234), three_digits(123.4), three_digits(12345.6)
        ('0.0123', '123', '12,346')
    """
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def percent(fraction: float) -> str:
    """Whole per cent, and never 0 % or 100 % of what is not none or all.

    Example:
        >>> percent(0.5), percent(0.001), percent(0.999)
        ('50 %', '< 1 %', '> 99 %')
    """
    if 0 < fraction < 0.01:
        return "< 1 %"
    if 0.99 < fraction < 1:
        return "> 99 %"
    return f"{100 * fraction:.0f} %"


def cosine_text(cosine: float) -> str:
    """Four decimals, and never 1 for what is not.

    Example:
        >>> cosine_text(1.0), cosine_text(0.99999), cosine_text(-0.5)
        ('1.0000', '0.9999', '-0.5000')
    """
    if math.isnan(cosine):
        return "not finite"
    return f"{math.trunc(cosine * 1e4) / 1e4:.4f}" if 1 - cosine > 1e-7 else f"{cosine:.4f}"


def error_text(error: float) -> str:
    """Two digits.

    Example:
        >>> error_text(0.0123), error_text(2.34e-7), error_text(123456.0)
        ('0.012', '2.3e-07', '1.2e+05')
    """
    return "not finite" if math.isnan(error) else f"{error:.2g}"


def _agreement_cells(found: Agreement | None) -> list[str]:
    if found is None:
        return ["", ""]
    return [cosine_text(found.cosine), error_text(found.relative_error)]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    numbers = (cell.rjust(width) for cell, width in rest)
    return "  ".join([first[0].ljust(first[1]), *numbers]).rstrip()
