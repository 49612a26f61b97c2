"""Records of benchmarks/gradients.py as the tables of choosing.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gradients_record import Cost, GradientRecord, Quality
from gradients_subjects import STATES

from equipool.bench.record import Timing
from equipool.comparison.result import MEBIBYTE, cosine_text, error_text, percent, three_digits

STATE_NAMES = {
    "untrained": "Untrained, the paper's defaults",
    "trained": "Trained, the paper's defaults",
    "convex": "Trained, `ConvexPotential`, `SquaredNorm(1.0)`, `Nesterov(0.5, momentum=0.5)`",
}


def quality(record: GradientRecord) -> str:
    """Cosine and relative error of the parameters' gradient."""
    parts = []
    for state in STATES:
        rows = [row for row in record.quality if row.state == state]
        parts += [f"**{STATE_NAMES[state]}**", _quality_table(rows)]
    return "\n\n".join(parts)


def training(record: GradientRecord) -> str:
    """Losses of the short trainings."""
    lines = [
        [row.state, str(row.size), error_text(row.loss_before), error_text(row.loss_after)]
        for row in record.training
    ]
    return table(["layer", "output size", "loss at first", "loss at the end"], lines)


def cost(record: GradientRecord) -> str:
    """Time and memory of a training step with each method."""
    parts = []
    for sets, size in dict.fromkeys((row.sets, row.size) for row in record.cost):
        rows = [row for row in record.cost if (row.sets, row.size) == (sets, size)]
        parts.append(f"{sets} sets, {rows[0].elements:,} elements, output size {size}:")
        parts.append(_cost_table(rows))
    return "\n\n".join(parts)


def solvers(record: GradientRecord) -> str:
    """Steps and time to the tolerance."""
    headings = ["layer", "output size", "solver", "converged", "steps: median, most", "at most",
                "ms, quartiles"]  # fmt: skip
    lines = [
        [
            row.state,
            str(row.size),
            row.solver,
            percent(row.converged),
            f"{row.median_steps:.0f}, {row.most_steps}",
            str(row.max_steps),
            _milliseconds(row.timing),
        ]
        for row in record.solvers
    ]
    return table(headings, lines)


def stopping(records: Iterable[GradientRecord]) -> str:
    """With and without stopping the sets that have converged."""
    headings = ["where", "sets x elements", "steps of one half, other half", "all sets, all steps",
                "stopping", "times faster", "aim", "largest difference in y"]  # fmt: skip
    lines = [
        [
            machine(record),
            f"{row.sets:,} x {row.elements / row.sets:.0f}",
            f"{row.early_steps:.0f}, {row.late_steps:.0f}",
            f"{_milliseconds(row.fixed)} ms",
            f"{_milliseconds(row.stopping)} ms",
            f"{row.speedup:.2f}",
            "reached" if row.reached else "missed",
            error_text(row.largest_difference),
        ]
        for record in records
        for row in record.stopping
    ]
    return table(headings, lines)


def backward(records: Iterable[GradientRecord]) -> str:
    """Cost of an implicit gradient over the number of steps."""
    headings = [
        "where", "layer", "sets, output size", "memory, T = 5", "T = 50", "ratio", "CG steps",
        "backward", "one unrolled step's", "ratio to 3 x steps", "fell back", "aims",
    ]  # fmt: skip
    lines = [
        [
            machine(record),
            row.layer,
            f"{row.sets}, {row.size}",
            f"{three_digits(row.short_bytes / MEBIBYTE)} MiB",
            f"{three_digits(row.long_bytes / MEBIBYTE)} MiB",
            f"{row.memory_ratio:.2f}",
            str(row.cg_steps),
            f"{_milliseconds(row.implicit)} ms",
            f"{three_digits(row.step_ms)} ms",
            f"{row.time_ratio:.2f}",
            percent(row.fallback),
            f"{' and '.join(row.missed)} missed" if row.missed else "reached",
        ]
        for record in records
        for row in record.backward
    ]
    return table(headings, lines)


def machine(record: GradientRecord) -> str:
    """The device that a record was made on."""
    if "gpu" in record.hardware:
        return str(record.hardware["gpu"])
    threads = record.hardware["threads"]
    return "one CPU core" if threads == 1 else f"{threads} CPU cores"


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    Example:
        >>> print(table(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    rows = ["| " + " | ".join(line) + " |" for line in (headings, *lines)]
    return "\n".join([rows[0], "|" + "---|" * len(headings), *rows[1:]])


def _quality_table(rows: Sequence[Quality]) -> str:
    methods = list(dict.fromkeys(row.way for row in rows if row.way != "Unrolled"))
    found = {(row.size, row.num_steps, row.way): row for row in rows}
    lines = []
    for size, steps in dict.fromkeys((row.size, row.num_steps) for row in rows):
        unrolled = found[size, steps, "Unrolled"]
        cells = [_quality_cell(found.get((size, steps, method))) for method in methods]
        error = error_text(_known(unrolled.error))
        lines.append([str(size), str(steps), percent(unrolled.converged), error, *cells])
    return table(["output size", "T", "converged", "Unrolled", *methods], lines)


def _quality_cell(row: Quality | None) -> str:
    if row is None:
        return ""
    text = f"{cosine_text(_known(row.cosine))}, {error_text(_known(row.error))}"
    return f"{text}; {percent(row.fallback)} fell back" if row.fallback else text


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _cost_table(rows: Sequence[Cost]) -> str:
    steps = list(dict.fromkeys(row.num_steps for row in rows))
    found = {(row.state, row.way, row.num_steps): row for row in rows}
    headings = ["layer", "way"]
    for count in steps:
        headings += [f"T = {count}: ms, quartiles", "x unrolled", "MiB", "fell back"]
    lines = []
    for state, method in dict.fromkeys((row.state, row.way) for row in rows):
        line = [state, method]
        for count in steps:
            row, unrolled = found[state, method, count], found[state, "Unrolled", count]
            faster = unrolled.timing.median / row.timing.median
            line += [_milliseconds(row.timing), f"{faster:.2f}",
                     three_digits(row.peak_bytes / MEBIBYTE),
                     "" if row.fallback is None else percent(row.fallback)]  # fmt: skip
        lines.append(line)
    return table(headings, lines)


def _milliseconds(timing: Timing) -> str:
    lower, upper = three_digits(timing.lower_quartile), three_digits(timing.upper_quartile)
    return f"{three_digits(timing.median)} ({lower}-{upper})"
