"""Tables and numbers in Markdown, and the generated blocks of pages that show them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

BLOCK = re.compile(r"(<!-- generated: ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)
MEBIBYTE = 2**20


def fill(page: str, blocks: Mapping[str, str]) -> str:
    """The page with new text between `<!-- generated: NAME -->` and `<!-- end -->`."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{blocks[match[2]]}\n\n{match[3]}", page)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def columns(items: Iterable[Any], cells: Mapping[str, Callable[[Any], str]]) -> str:
    """A table with a row for each item, from a function for each heading."""
    return table(list(cells), ([cell(item) for cell in cells.values()] for item in items))


def number(value: float | None) -> str:
    """Three significant digits."""
    return "not finite" if value is None else f"{value:.3g}"


def spread(values: Sequence[float], show: Callable[[float], str] = number) -> str:
    """Mean and standard deviation."""
    mean = show(statistics.fmean(values))
    return mean if len(values) < 2 else f"{mean} ± {show(statistics.stdev(values))}"


def span(values: Sequence[float], form: str = ",") -> str:
    """The smallest and the largest value, or one of them if both look the same."""
    return " to ".join(dict.fromkeys(format(value, form) for value in (min(values), max(values))))


def three_digits(value: float) -> str:
    """Three significant digits, or a whole number."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def mebibytes(count: float) -> str:
    return three_digits(count / MEBIBYTE)


def quartiles(timing: Mapping[str, float]) -> str:
    """Median and quartiles in milliseconds."""
    low, high = timing["lower_quartile"], timing["upper_quartile"]
    return f"{three_digits(timing['median'])} ({three_digits(low)}-{three_digits(high)})"


def percent(fraction: float | None) -> str:
    """Whole per cent; 0 % and 100 % stand for exactly none and all, and nothing for None."""
    if fraction is None:
        return ""
    if 0 < fraction < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < fraction < 1 else f"{100 * fraction:.0f} %"


def error_text(error: float | None) -> str:
    """Two significant digits."""
    return "not finite" if error is None else f"{error:.2g}"


def cosine_text(cosine: float | None) -> str:
    """Four decimals, rounded to 1 only if it differs from 1 by rounding alone."""
    if cosine is None:
        return "not finite"
    return f"{math.trunc(cosine * 1e4) / 1e4:.4f}" if 1 - cosine > 1e-7 else f"{cosine:.4f}"
