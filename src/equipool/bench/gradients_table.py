"""Records of `equipool bench gradients` as tables, and the page that shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from equipool.bench.gradients_record import Cost, GradientRecord, Part, Quality
from equipool.bench.gradients_subjects import STATES
from equipool.bench.outcome import Timing
from equipool.bench.table import MEBIBYTE, number
from equipool.comparison.result import cosine_text, error_text, percent

Records = dict[str, GradientRecord]
"""By name, the CPU's first."""

STATE_NAMES = {
    "untrained": "Untrained, the paper's defaults",
    "trained": "Trained, the paper's defaults",
    "convex": "Trained, `ConvexPotential`, `SquaredNorm(1.0)`, `Nesterov(0.5, momentum=0.5)`",
}
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refresh(page: str, records: Records) -> str:
    """The page with each block between `<!-- generated: NAME -->` and `<!-- end -->` made anew."""
    return BLOCK.sub(lambda m: f"{m[1]}\n{SECTIONS[m[2]](records)}\n\n{m[3]}", page)


def newest(records: Records, part: Part) -> Records:
    """Of each machine the record that is shown for a part: the newest one that has it."""
    found: dict[str, str] = {}
    for name, record in records.items():
        machine = _machine(record)
        latest = records[found[machine]].date if machine in found else ""
        if getattr(record, part) and record.date > latest:
            found[machine] = name
    return {name: records[name] for name in found.values()}


def quality(records: Records) -> str:
    """Cosine and relative error of the gradient by the parameters, of the first machine."""
    name, record = next(iter(newest(records, "quality").items()))
    parts = [_where(name, record)]
    for state in STATES:
        rows = [row for row in record.quality if row.state == state]
        parts += [f"**{STATE_NAMES[state]}**", _quality_table(rows)]
    return "\n\n".join(parts)


def training(records: Records) -> str:
    """What was trained, and how far, for the tables of quality, or else in the first record."""
    record = next(iter((newest(records, "quality") or records).values()))
    lines = [
        [row.state, str(row.size), error_text(row.loss_before), error_text(row.loss_after)]
        for row in record.training
    ]
    return table(["layer", "output size", "loss at first", "loss at the end"], lines)


def cost(records: Records) -> str:
    """Time and memory of a training step in each way."""
    return _each(newest(records, "cost"), _cost_tables)


def solvers(records: Records) -> str:
    """Steps and time to the tolerance."""
    return _each(newest(records, "solvers"), _solver_table)


def stopping(records: Records) -> str:
    """With and without stopping the sets that have converged."""
    headings = ["where", "sets x elements", "steps of one half, other half", "all sets, all steps",
                "stopping", "times faster", "aim", "largest difference in y"]  # fmt: skip
    lines = [
        [
            _machine(record),
            f"{row.sets:,} x {row.elements / row.sets:.0f}",
            f"{row.early_steps:.0f}, {row.late_steps:.0f}",
            _milliseconds(row.fixed),
            _milliseconds(row.stopping),
            f"{row.speedup:.2f}",
            "reached" if row.reached else "missed",
            error_text(row.largest_difference),
        ]
        for record in newest(records, "stopping").values()
        for row in record.stopping
    ]
    return table(headings, lines)


def backward(records: Records) -> str:
    """What an implicit gradient costs over the number of steps."""
    headings = [
        "where", "layer", "sets, output size", "memory, T = 5", "T = 50", "ratio", "CG steps",
        "backward", "one unrolled step's", "ratio to 3 x steps", "fell back", "aims",
    ]  # fmt: skip
    lines = [
        [
            _machine(record),
            row.layer,
            f"{row.sets}, {row.size}",
            f"{number(row.short_bytes / MEBIBYTE)} MiB",
            f"{number(row.long_bytes / MEBIBYTE)} MiB",
            f"{row.memory_ratio:.2f}",
            str(row.cg_steps),
            _milliseconds(row.implicit),
            f"{number(row.step_ms)} ms",
            f"{row.time_ratio:.2f}",
            percent(row.fallback),
            f"{' and '.join(row.missed)} missed" if row.missed else "reached",
        ]
        for record in newest(records, "backward").values()
        for row in record.backward
    ]
    return table(headings, lines)


SECTIONS: dict[str, Callable[[Records], str]] = {
    "quality": quality, "training": training, "cost": cost, "solvers": solvers,
    "stopping": stopping, "backward": backward,
}  # fmt: skip


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """In Markdown.

    Example:
        >>> print(table(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    rows = ["| " + " | ".join(line) + " |" for line in (headings, *lines)]
    return "\n".join([rows[0], "|" + "---|" * len(headings), *rows[1:]])


def _quality_table(rows: Sequence[Quality]) -> str:
    ways = list(dict.fromkeys(row.way for row in rows if row.way != "Unrolled"))
    found = {(row.size, row.num_steps, row.way): row for row in rows}
    lines = []
    for size, steps in dict.fromkeys((row.size, row.num_steps) for row in rows):
        unrolled = found[size, steps, "Unrolled"]
        cells = [_quality_cell(found.get((size, steps, way))) for way in ways]
        error = error_text(_known(unrolled.error))
        lines.append([str(size), str(steps), percent(unrolled.converged), error, *cells])
    return table(["output size", "T", "converged", "Unrolled", *ways], lines)


def _quality_cell(row: Quality | None) -> str:
    if row is None:
        return ""
    text = f"{cosine_text(_known(row.cosine))}, {error_text(_known(row.error))}"
    return f"{text}; {percent(row.fallback)} fell back" if row.fallback else text


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _cost_tables(record: GradientRecord) -> str:
    parts = []
    for sets, size in dict.fromkeys((row.sets, row.size) for row in record.cost):
        rows = [row for row in record.cost if (row.sets, row.size) == (sets, size)]
        parts.append(f"{sets} sets, {rows[0].elements:,} elements, output size {size}:")
        parts.append(_cost_table(rows))
    return "\n\n".join(parts)


def _cost_table(rows: Sequence[Cost]) -> str:
    steps = list(dict.fromkeys(row.num_steps for row in rows))
    found = {(row.state, row.way, row.num_steps): row for row in rows}
    headings = ["layer", "way"]
    for count in steps:
        headings += [f"T = {count}: ms, quartiles", "x unrolled", "MiB", "fell back"]
    lines = []
    for state, way in dict.fromkeys((row.state, row.way) for row in rows):
        line = [state, way]
        for count in steps:
            row, unrolled = found[state, way, count], found[state, "Unrolled", count]
            faster = unrolled.timing.median / row.timing.median
            line += [_milliseconds(row.timing).removesuffix(" ms"), f"{faster:.2f}",
                     number(row.peak_bytes / MEBIBYTE),
                     "" if row.fallback is None else percent(row.fallback)]  # fmt: skip
        lines.append(line)
    return table(headings, lines)


def _solver_table(record: GradientRecord) -> str:
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
            _milliseconds(row.timing).removesuffix(" ms"),
        ]
        for row in record.solvers
    ]
    return table(headings, lines)


def _each(records: Records, content: Callable[[GradientRecord], str]) -> str:
    parts = [f"{_where(name, record)}\n\n{content(record)}" for name, record in records.items()]
    return "\n\n".join(parts)


def _where(name: str, record: GradientRecord) -> str:
    return f"On {_machine(record)}. Record: `{name}.json`."


def _machine(record: GradientRecord) -> str:
    if "gpu" in record.hardware:
        return str(record.hardware["gpu"])
    threads = record.hardware["threads"]
    return "one CPU core" if threads == 1 else f"{threads} CPU cores"


def _milliseconds(timing: Timing) -> str:
    lower, upper = number(timing.lower_quartile), number(timing.upper_quartile)
    return f"{number(timing.median)} ({lower}-{upper}) ms"
