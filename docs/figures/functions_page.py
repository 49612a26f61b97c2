"""Tables and picture of the nine functions in location.md."""

from __future__ import annotations

import statistics

from drawing import BLUE, GREY, picture
from records import MEASUREMENTS, group, read_lines
from tables import columns, three_digits

PAGE = "location.md"
LABELS = {"location": "LocationPooling", "location without weights": "LocationPooling, heads=0",
          "pna": "PNA", "quantile": "three quantiles", "set-transformer": "Set Transformer",
          "equilibrium": "the paper's potential, 5 steps"}  # fmt: skip
SIZES = (50, 500, 5000)
GROWS = "sum above 1"  # with the size of the set, which no network here was told


def read_errors(size: int) -> dict[str, dict[str, float]]:
    """Of each pooling the error of each function, in per cent: means over the seeds."""
    _, *rows = read_lines(MEASUREMENTS / "cpu-functions.jsonl")
    found: dict[str, dict[str, float]] = {}
    for (pooling, name), some in group(rows, lambda r: (r["pooling"], r["function"])).items():
        errors = [row["errors"][str(size)] for row in some]
        mean = float("inf") if None in errors else statistics.fmean(errors)
        found.setdefault(LABELS.get(pooling, pooling), {})[name] = mean
    return found


def blocks() -> dict[str, str]:
    found = {size: read_errors(size) for size in SIZES}
    at_50 = found[SIZES[0]]
    lowest = {name: min(own[name] for own in at_50.values()) for name in at_50["LocationPooling"]}

    def cell(pooling: str, name: str) -> str:
        text, error = three_digits(at_50[pooling][name]), at_50[pooling][name]
        return f"**{text}**" if error == lowest[name] else text

    def worst(pooling: str, size: int, without: str | None = None) -> str:
        errors = found[size][pooling]
        return three_digits(max(error for name, error in errors.items() if name != without))

    return {
        "location times": times(),
        "functions": columns(at_50, {
            "pooling": str,
            **{name: lambda pooling, name=name: cell(pooling, name) for name in lowest},
            "worst": lambda pooling: worst(pooling, SIZES[0]),
        }),
        "function sizes": columns(at_50, {
            "worst of eight, %": str,
            **{f"{size:,} numbers": lambda pooling, size=size: worst(pooling, size, GROWS)
               for size in SIZES},
        }),
    }  # fmt: skip


def times() -> str:
    """Median milliseconds of each path, for both batches."""
    _, *rows = read_lines(MEASUREMENTS / "cpu-location.jsonl")
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row["path"], {})[row["batch"]] = row["milliseconds"]["median"]
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    cells = {name: lambda path, name=name: three_digits(found[path][name]) for name in batches}
    return columns(found, {"milliseconds on one core": str, **cells})


def draw() -> None:
    """The errors of each pooling in a row, and the worst of them as a diamond."""
    found = sorted(read_errors(SIZES[0]).items(), key=lambda own: -max(own[1].values()))
    with picture("location-functions", 1, 1, (9, 3.6)) as axes:
        ax = axes[0, 0]
        for row, (name, errors) in enumerate(found):
            color = BLUE if name in list(LABELS.values())[:2] else GREY
            ax.plot(list(errors.values()), [row] * len(errors), "o", color=color, alpha=0.6, ms=4)
            ax.plot(max(errors.values()), row, "D", color=color, ms=8)
        ax.set(xscale="log", xlabel="error, % of the target's deviation",
               title="each of nine functions of 50 numbers, and the worst (diamond)")  # fmt: skip
        ax.set_yticks(range(len(found)), [name for name, _ in found])
