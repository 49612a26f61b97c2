"""Tables and picture of measurements/gradients.md. Each part shows, for each machine, the newest
record that has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drawing import legend_below, picture, styles
from records import group, read_measurement
from tables import columns, cosine_text, error_text, mebibytes, percent, quartiles, table, three_digits

PAGE = "measurements/gradients.md"
RECORDS = ("cpu-gradients", "h200-gradients", "h200-gradients-backward")
STATES = {
    "untrained": "Untrained, the paper's defaults",
    "trained": "Trained, the paper's defaults",
    "convex": "Trained, `ConvexPotential`, `SquaredNorm(1.0)`, `Nesterov(0.5, momentum=0.5)`",
}
FASTER = 1.5  # aim of stopping early
MEMORY, TIME = 1.2, 1.0  # aims of the implicit gradient: largest ratios

Row = dict[str, Any]


def newest(part: str) -> dict[str, tuple[str, list[Row]]]:
    """The name of the record and the rows of a part, by machine, the CPU first."""
    found: dict[str, tuple[str, list[Row], str]] = {}
    for name in RECORDS:
        header, parts = read_measurement(name)
        where = header["hardware"].get("gpu", "one CPU core")
        if part in parts and header["date"] > found.get(where, ("", [], ""))[2]:
            found[where] = name, parts[part], header["date"]
    return {where: (name, rows) for where, (name, rows, _) in found.items()}


def each(part: str, content: Callable[[list[Row]], str]) -> str:
    return "\n\n".join(
        f"On {where}. Record: `{name}.jsonl`.\n\n{content(rows)}"
        for where, (name, rows) in newest(part).items()
    )


def with_machine(part: str) -> list[Row]:
    return [row | {"where": where} for where, (_, rows) in newest(part).items() for row in rows]


def first(part: str) -> tuple[str, list[Row]]:
    return next(iter(newest(part).values()))


def quality(rows: Sequence[Row]) -> str:
    """Cosine and relative error of the parameters' gradient."""

    def cell(row: Row | None) -> str:
        if row is None:
            return ""
        text = f"{cosine_text(row['cosine'])}, {error_text(row['error'])}"
        return f"{text}; {percent(row['fallback'])} fell back" if row["fallback"] else text

    def of_state(rows: Sequence[Row]) -> str:
        methods = [way for way in group(rows, lambda row: row["way"]) if way != "Unrolled"]
        cases = group(rows, lambda row: (row["size"], row["num_steps"]))
        found = [{row["way"]: row for row in some} for some in cases.values()]
        return columns(found, {
            "output size": lambda case: str(case["Unrolled"]["size"]),
            "T": lambda case: str(case["Unrolled"]["num_steps"]),
            "converged": lambda case: percent(case["Unrolled"]["converged"]),
            "Unrolled": lambda case: error_text(case["Unrolled"]["error"]),
            **{method: lambda case, m=method: cell(case.get(m)) for method in methods},
        })  # fmt: skip

    states = group(rows, lambda row: row["state"])
    return "\n\n".join(f"**{STATES[s]}**\n\n{of_state(states[s])}" for s in STATES)


def training(rows: Sequence[Row]) -> str:
    """Losses of the short trainings."""
    return columns(rows, {
        "layer": lambda row: row["state"],
        "output size": lambda row: str(row["size"]),
        "loss at first": lambda row: error_text(row["loss_before"]),
        "loss at the end": lambda row: error_text(row["loss_after"]),
    })  # fmt: skip


def cost(rows: Sequence[Row]) -> str:
    """Time and memory of a training step with each method."""

    def of_size(rows: Sequence[Row]) -> str:
        steps = list(group(rows, lambda row: row["num_steps"]))
        found = {(row["state"], row["way"], row["num_steps"]): row for row in rows}
        headings, lines = ["layer", "way"], []
        for count in steps:
            headings += [f"T = {count}: ms, quartiles", "x unrolled", "MiB", "fell back"]
        for state, way in group(rows, lambda row: (row["state"], row["way"])):
            line = [state, way]
            for count in steps:
                row, unrolled = found[state, way, count], found[state, "Unrolled", count]
                faster = unrolled["timing"]["median"] / row["timing"]["median"]
                line += [quartiles(row["timing"]), f"{faster:.2f}", mebibytes(row["peak_bytes"]),
                         percent(row["fallback"])]  # fmt: skip
            lines.append(line)
        return table(headings, lines)

    return "\n\n".join(
        f"{sets} sets, {some[0]['elements']:,} elements, output size {size}:\n\n{of_size(some)}"
        for (sets, size), some in group(rows, lambda row: (row["sets"], row["size"])).items()
    )


def solvers(rows: Sequence[Row]) -> str:
    """Steps and time to the tolerance."""
    return columns(rows, {
        "layer": lambda row: row["state"],
        "output size": lambda row: str(row["size"]),
        "solver": lambda row: row["solver"],
        "converged": lambda row: percent(row["converged"]),
        "steps: median, most": lambda row: f"{row['median_steps']:.0f}, {row['most_steps']}",
        "at most": lambda row: str(row["max_steps"]),
        "ms, quartiles": lambda row: quartiles(row["timing"]),
    })  # fmt: skip


def stopping(rows: Sequence[Row]) -> str:
    """With and without stopping the sets that have converged."""

    def speedup(row: Row) -> float:
        return row["fixed"]["median"] / row["stopping"]["median"]

    return columns(rows, {
        "where": lambda row: row["where"],
        "sets x elements": lambda row: f"{row['sets']:,} x {row['elements'] / row['sets']:.0f}",
        "steps of one half, other half": lambda row: (
            f"{row['early_steps']:.0f}, {row['late_steps']:.0f}"
        ),
        "all sets, all steps": lambda row: f"{quartiles(row['fixed'])} ms",
        "stopping": lambda row: f"{quartiles(row['stopping'])} ms",
        "times faster": lambda row: f"{speedup(row):.2f}",
        "aim": lambda row: "reached" if speedup(row) >= FASTER else "missed",
        "largest difference in y": lambda row: error_text(row["largest_difference"]),
    })  # fmt: skip


def backward(rows: Sequence[Row]) -> str:
    """Cost of an implicit gradient over the number of steps, compared with the backward pass of
    three unrolled steps for each step of conjugate gradients."""

    def memory_ratio(row: Row) -> float:
        return row["long_bytes"] / row["short_bytes"]

    def step_ms(row: Row) -> float:
        return row["unrolled"]["median"] / row["long_steps"]

    def time_ratio(row: Row) -> float:
        return row["implicit"]["median"] / (3 * step_ms(row) * row["cg_steps"])

    def aims(row: Row) -> str:
        within = {"memory": memory_ratio(row) <= MEMORY, "time": time_ratio(row) <= TIME}
        missed = [name for name, reached in within.items() if not reached]
        return f"{' and '.join(missed)} missed" if missed else "reached"

    return columns(rows, {
        "where": lambda row: row["where"],
        "layer": lambda row: row["layer"],
        "sets, output size": lambda row: f"{row['sets']}, {row['size']}",
        "memory, T = 5": lambda row: f"{mebibytes(row['short_bytes'])} MiB",
        "T = 50": lambda row: f"{mebibytes(row['long_bytes'])} MiB",
        "ratio": lambda row: f"{memory_ratio(row):.2f}",
        "CG steps": lambda row: str(row["cg_steps"]),
        "backward": lambda row: f"{quartiles(row['implicit'])} ms",
        "one unrolled step's": lambda row: f"{three_digits(step_ms(row))} ms",
        "ratio to 3 x steps": lambda row: f"{time_ratio(row):.2f}",
        "fell back": lambda row: percent(row["fallback"]),
        "aims": aims,
    })  # fmt: skip


def blocks() -> dict[str, str]:
    name, rows = first("quality")
    return {
        "quality": f"On one CPU core. Record: `{name}.jsonl`.\n\n{quality(rows)}",
        "training": training(first("training")[1]),
        "cost": each("cost", cost),
        "solvers": each("solvers", solvers),
        "stopping": stopping(with_machine("stopping")),
        "backward": backward(with_machine("backward")),
    }


def draw() -> None:
    """Relative error over the number of steps, a panel for each layer and output size."""
    _, rows = first("quality")
    sizes = list(group(rows, lambda row: row["size"]))
    drawn = styles([row["way"] for row in rows])
    with picture("gradients", len(STATES), len(sizes), (9, 7), sharex=True, sharey=True) as axes:
        for line, state in zip(axes, STATES, strict=True):
            for ax, size in zip(line, sizes, strict=True):
                draw_panel(ax, [r for r in rows if (r["state"], r["size"]) == (state, size)], drawn)
                ax.set_title(f"{state}, output size {size}")
        axes[0, 0].figure.supylabel("relative error of the parameters' gradient")
        axes[0, 0].figure.supxlabel("inner steps T; hollow: more than half of the sets fell back")
        legend_below(axes, drawn)


def draw_panel(ax: Any, rows: Sequence[Row], drawn: Mapping[str, Row]) -> None:
    for way, points in group(rows, lambda row: row["way"]).items():
        steps = [row["num_steps"] for row in points]
        errors = [math.nan if row["error"] is None else row["error"] for row in points]
        ax.plot(steps, errors, **drawn[way])
        for row, error in zip(points, errors, strict=True):
            if row["fallback"] is not None and row["fallback"] > 0.5:
                look = drawn[way] | {"markerfacecolor": "white"}
                ax.plot(row["num_steps"], error, **look)
    ax.set(xscale="log", yscale="log", xticks=steps, xticklabels=steps)
    ax.minorticks_off()
    ax.grid(alpha=0.3)
