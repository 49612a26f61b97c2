"""The result of a comparison, as numbers, a table and a plot."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equipool.figures import draw_bars, make_figure, save_figure

MEBIBYTE = 2**20
HEADINGS = (
    "method", "cosine", "error", "cosine of x", "error of x", "ms", "fastest-slowest", "MiB",
    "converged", "fell back",
)  # fmt: skip
SMALLEST_ERROR = 1e-16  # float64's rounding; a logarithmic axis has no zero


@dataclass(frozen=True)
class Agreement:
    """How close a gradient is to the exact one. Both numbers are nan if either gradient is not
    finite.

    Attributes:
        cosine: of the angle between the two; 0 if exactly one of them is zero.
        relative_error: norm of the difference over the norm of the exact one; infinite if the exact
            one is zero and the other is not.
    """

    cosine: float
    relative_error: float


@dataclass(frozen=True)
class Seconds:
    """Time of a pass, over its repeats."""

    median: float
    fastest: float
    slowest: float

    @classmethod
    def of(cls, times: list[float]) -> Seconds:
        return cls(statistics.median(times), min(times), max(times))


@dataclass(frozen=True)
class GradientRow:
    """One differentiation method.

    Attributes:
        method: the given name, or the method's repr.
        parameters: agreement of the gradient by all learned parameters; None if there are none.
        x: agreement of the gradient by the elements.
        seconds: forward and backward.
        peak_bytes: the most that tensors held during forward and backward, beyond what was held
            before.
        converged: fraction of the sets whose residual is within the layer's tolerance.
        fallback: fraction of the sets whose gradient is not the implicit one; None for methods that
            are not implicit.
    """

    method: str
    parameters: Agreement | None
    x: Agreement
    seconds: Seconds
    peak_bytes: int
    converged: float
    fallback: float | None

    def cells(self) -> list[str]:
        """As text, in the order of `HEADINGS`."""
        times = (self.seconds.median, self.seconds.fastest, self.seconds.slowest)
        median, fastest, slowest = (three_digits(1000 * seconds) for seconds in times)
        cells = [self.method]
        for a in (self.parameters, self.x):
            cells += [cosine_text(a.cosine), error_text(a.relative_error)] if a else ["", ""]
        cells += [median, f"{fastest}-{slowest}", three_digits(self.peak_bytes / MEBIBYTE)]
        return [*cells, percent(self.converged), percent(self.fallback)]


@dataclass(frozen=True)
class GradientComparison:
    """The result of `compare_gradients`. `print` shows it as a table.

    Attributes:
        rows: one for each method.
        setting: what was compared: sizes, steps, device and dtype.
    """

    rows: tuple[GradientRow, ...]
    setting: str

    def __str__(self) -> str:
        table = [list(HEADINGS), *(row.cells() for row in self.rows)]
        first, *others = (max(map(len, column)) for column in zip(*table, strict=True))
        lines = [self.setting, ""]
        for name, *cells in table:
            numbers = (cell.rjust(width) for cell, width in zip(cells, others, strict=True))
            lines.append("  ".join([name.ljust(first), *numbers]).rstrip())
        return "\n".join(lines)

    def markdown(self) -> str:
        """The same as a Markdown table."""
        lines = [list(HEADINGS), ["---", *["--:"] * (len(HEADINGS) - 1)]]
        lines += [[f"`{method}`", *rest] for method, *rest in (row.cells() for row in self.rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def as_dict(self) -> dict[str, Any]:
        """The numbers and texts as dictionaries and lists."""
        return asdict(self)

    def plot(self, path: str | Path) -> None:
        """Draw error, time and memory of each method to a file; its suffix chooses the format.
        The same numbers give the same bytes. Needs matplotlib."""
        figure = make_figure(11, 1.4 + 0.35 * len(self.rows))
        errors = [(row.parameters or row.x).relative_error for row in self.rows]
        lengths = [max(e, SMALLEST_ERROR) if math.isfinite(e) else math.nan for e in errors]
        times = [1000 * row.seconds.median for row in self.rows]
        memory = [row.peak_bytes / MEBIBYTE for row in self.rows]
        axes = figure.subplots(1, 3, sharey=True)
        fell_back = [f", {percent(r.fallback)} fell back" if r.fallback else "" for r in self.rows]
        names = [row.method + note for row, note in zip(self.rows, fell_back, strict=True)]
        shown_errors = list(map(error_text, errors))
        for ax, color, title, values, labels in (
            (axes[0], "#0072B2", "relative error of the gradient", lengths, shown_errors),
            (axes[1], "#009E73", "forward and backward, ms", times, map(three_digits, times)),
            (axes[2], "#D55E00", "peak memory, MiB", memory, map(three_digits, memory)),
        ):
            draw_bars(ax, names, values, list(labels), color)
            ax.set_title(title, loc="left", fontsize=10)
        axes[0].set_xscale("log")
        axes[0].invert_yaxis()
        figure.supxlabel(self.setting, fontsize=8, color="#666666")
        save_figure(figure, path)


def three_digits(value: float) -> str:
    """Three significant digits, or a whole number: 0.0123, 123, 12,346."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def percent(fraction: float | None) -> str:
    """Whole per cent; 0 % and 100 % stand for exactly none and all, and nothing for None.

    Example:
        >>> percent(0.5), percent(0.001), percent(0.999)
        ('50 %', '< 1 %', '> 99 %')
    """
    if fraction is None:
        return ""
    if 0 < fraction < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < fraction < 1 else f"{100 * fraction:.0f} %"


def cosine_text(cosine: float) -> str:
    """Four decimals, rounded to 1 only if it differs from 1 by rounding alone.

    Example:
        >>> cosine_text(1.0), cosine_text(0.99999), cosine_text(-0.5)
        ('1.0000', '0.9999', '-0.5000')
    """
    if math.isnan(cosine):
        return "not finite"
    return f"{math.trunc(cosine * 1e4) / 1e4:.4f}" if 1 - cosine > 1e-7 else f"{cosine:.4f}"


def error_text(error: float) -> str:
    """Two significant digits: 0.012, 2.3e-07."""
    return "not finite" if math.isnan(error) else f"{error:.2g}"
