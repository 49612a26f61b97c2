"""Compare benchmark records with the project's own targets; exits with 1 if one is missed.

    python benchmarks/goals.py benchmarks/records/*.json

Records of commands other than `equipool bench` are skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from equipool.bench.cases import Mode
from equipool.bench.record import OtherRecordError, Record, Row, read_record

OURS = ("equipool", "equipool-torch", "equipool-captured", "equipool-compiled")
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Goal:
    """A target."""

    name: str
    target: str
    found: str
    reached: bool


def find_goals(records: Iterable[Record]) -> list[Goal]:
    """The goals that the records decide."""
    goals: list[Goal] = []
    for record in records:
        goals += [goal for make in BY_PRESET.get(record.preset, ()) for goal in make(record)]
        goals += _accuracy(record)
    return goals


def rows_of(
    record: Record, paths: Iterable[str], mode: Mode = "training", **sizes: int | str
) -> list[Row]:
    """The timed rows of some paths at some sizes of the case."""
    return [
        row
        for row in record.rows
        if row.timing is not None
        and row.path in paths
        and row.mode == mode
        and all(getattr(row.case, name) == value for name, value in sizes.items())
    ]


def fastest(rows: list[Row]) -> Row | None:
    return min(rows, key=_milliseconds, default=None)


def _milliseconds(row: Row) -> float:
    assert row.timing is not None
    return row.timing.median


def _mebibytes(row: Row) -> float:
    return (row.peak_bytes or 0) / MEBIBYTE


def _named(row: Row) -> str:
    return f"{row.path} {row.precision}"


# sets, milliseconds, MiB, times faster than PyG's layer, times less memory
LAYER_TARGETS = ((8, 2.0, None, 40.0, None), (256, 5.0, 350.0, 20.0, None),
                 (2048, 25.0, 1536.0, 7.5, 12.0))  # fmt: skip


def _layer(record: Record) -> list[Goal]:
    goals = []
    for sets, limit, memory, times, less in LAYER_TARGETS:
        ours = fastest(rows_of(record, OURS, sets=sets))
        pyg = fastest(rows_of(record, ("pyg",), sets=sets))
        if ours is None:
            continue
        name = f"{sets} sets, {_named(ours)}"
        goals.append(_at_most(f"{name}: ms", _milliseconds(ours), limit))
        if memory is not None:
            goals.append(_at_most(f"{name}: MiB", _mebibytes(ours), memory))
        if pyg is not None:
            ratio = _milliseconds(pyg) / _milliseconds(ours)
            goals.append(_at_least(f"{name}: times faster than {_named(pyg)}", ratio, times))
            if less is not None:
                ratio = _mebibytes(pyg) / _mebibytes(ours)
                goals.append(_at_least(f"{name}: times less memory", ratio, less))
    return goals


def _steps(record: Record) -> list[Goal]:
    """Memory from the fewest to the most steps, without one `[sets, channels]` tensor per step."""
    goals = []
    for path in OURS:
        rows = sorted(rows_of(record, (path,)), key=lambda row: row.case.num_steps)
        rows = [row for row in rows if row.precision == rows[0].precision]
        if len(rows) < 2:
            continue
        first, last = rows[0], rows[-1]
        kept = 4 * last.case.sets * last.case.out_channels
        allowed = kept * (last.case.num_steps - first.case.num_steps) / MEBIBYTE
        growth = (_mebibytes(last) - allowed) / _mebibytes(first) - 1
        name = f"{path}: memory from T = {first.case.num_steps} to {last.case.num_steps}, % more"
        goals.append(_at_most(name, 100 * growth, 10.0))
    return goals


def _gin(record: Record) -> list[Goal]:
    """The equilibrium readout beside a sum, in the same precision."""
    goals = []
    for path, other, limit in (
        ("equipool", "sum", 1.5),
        ("equipool-captured", "sum-captured", 2.2),
    ):
        sums = {row.precision: row for row in rows_of(record, (other,), workload="gin")}
        for ours in rows_of(record, (path,), workload="gin"):
            if (plain := sums.get(ours.precision)) is not None:
                name = f"GIN, {_named(ours)}: times the step of {other}"
                ratio = _milliseconds(ours) / _milliseconds(plain)
                goals.append(_at_most(name, ratio, limit))
    return goals


def _median(record: Record) -> list[Goal]:
    ours = fastest(rows_of(record, ("equipool-captured",), workload="median"))
    if ours is None:
        return []
    return [_at_most(f"median, {_named(ours)}: ms", _milliseconds(ours), 2.2)]


def _quick(record: Record) -> list[Goal]:
    goals = []
    for sets in (8, 64):
        ours = fastest(rows_of(record, ("equipool",), sets=sets))
        pyg = fastest(rows_of(record, ("pyg",), sets=sets))
        if ours is not None and pyg is not None:
            ratio = _milliseconds(pyg) / _milliseconds(ours)
            goals.append(_at_least(f"{sets} sets, CPU: times faster than pyg", ratio, 3.0))
    return goals


def _elements(record: Record) -> list[Goal]:
    """Time per element from the second largest to the largest set."""
    goals = []
    for path in OURS:
        rows = sorted(rows_of(record, (path,)), key=lambda row: row.case.elements)
        if len(rows) < 2:
            continue
        before, last = rows[-2:]
        growth = _milliseconds(last) / _milliseconds(before)
        growth *= before.case.elements / last.case.elements
        name = f"{path}: time per element at {last.case.elements:,}, relative to a tenth of them"
        goals.append(_at_most(name, growth, 1.2))
    return goals


def _accuracy(record: Record) -> list[Goal]:
    judged = [row for row in record.rows if row.agreement and row.precision == "float32"]
    refused = [row for row in record.rows if row.status == "disagrees"]
    if not judged and not refused:
        return []
    agreements = [row.agreement for row in judged if row.agreement is not None]
    output = max((a.output for a in agreements), default=0.0)
    gradient = max((max(a.x_gradient, a.parameter_gradient) for a in agreements), default=0.0)
    return [
        _at_most(f"{record.preset}: float32 output error", output, 1e-5),
        _at_most(f"{record.preset}: float32 gradient error", gradient, 1e-4),
        _at_most(f"{record.preset}: rows refused for their numbers", len(refused), 0),
    ]


def _at_most(name: str, found: float, limit: float) -> Goal:
    return Goal(name, f"at most {limit:g}", f"{found:.3g}", found <= limit)


def _at_least(name: str, found: float, limit: float) -> Goal:
    return Goal(name, f"at least {limit:g}", f"{found:.3g}", found >= limit)


BY_PRESET: dict[str, tuple[Callable[[Record], list[Goal]], ...]] = {
    "quick": (_quick,),
    "layer": (_layer,),
    "steps": (_steps,),
    "elements": (_elements,),
    "gin": (_gin,),
    "median": (_median,),
    "networks": (_gin, _median),
}


def main(files: Iterable[Path]) -> int:
    """Print the goals; the exit status."""
    records = []
    for file in files:
        with suppress(OtherRecordError):
            records.append(read_record(file))
    goals = find_goals(records)
    for goal in goals:
        result = "reached" if goal.reached else "MISSED"
        print(f"{result:8} {goal.name}: {goal.found}, {goal.target}")
    return int(not all(goal.reached for goal in goals))


if __name__ == "__main__":
    sys.exit(main(map(Path, sys.argv[1:])))
