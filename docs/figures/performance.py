"""Tables and pictures of performance.md and stability.md. The name of a block is that of its record
and its part: `cpu-quick training` are the training rows of cpu-quick.jsonl."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from drawing import BLUE, GREEN, ORANGE, picture
from matplotlib import ticker
from records import group, read_measurement
from tables import columns, mebibytes, quartiles, three_digits

PAGES = ("performance.md", "stability.md")
TIMED = ("cpu-quick", "cpu-elements", "h200-plain", "h200-layer", "h200-networks", "h200-steps")
SHORT = ("plain recipe", "steps no longer than 0.5", "steps + momentum + curvature")
STABILITY = ("cpu-stability-biases", "cpu-stability")
COLORS = {"pyg": ORANGE, "reference": "#999999", "equipool": BLUE, "equipool-autograd": "#E69F00",
          "equipool-torch": "#56B4E9", "equipool-compiled": GREEN,
          "equipool-captured": "#000000"}  # fmt: skip
RIVAL = "#CC79A7"
MARKERS = {"sum": "v", "mean": "^", "max": "X", "attention": "<", "gmt": ">",
           "set-transformer": "s", "pna": "D", "sum-captured": "P"}  # fmt: skip
LINES = {"float32": "-", "tf32": "--", "bf16": ":"}
# What is drawn of which record: the size that its cases differ in, and its heading.
DRAWN = {
    "cpu-elements": ("elements", "elements in the set"),
    "h200-layer": ("sets", "sets in the batch"),
    "cpu-quick": ("sets", "sets in the batch"),
}

Row = dict[str, Any]


def timed_rows(name: str, mode: str = "training") -> list[Row]:
    """The rows of a record that were timed, with milliseconds of PyTorch Geometric's layer on the
    same sets in its fastest precision."""
    _, parts = read_measurement(name)
    rows = [row for row in parts["rows"] if row["mode"] == mode and row["timing"]]
    for some in group(rows, lambda row: str(row["case"])).values():
        theirs = [row["timing"]["median"] for row in some if row["path"] == "pyg"]
        for row in some:
            row["pyg"] = min(theirs, default=None)
    return rows


def timing(rows: Sequence[Row]) -> str:
    def gradient_error(row: Row) -> str:
        agreement = row["agreement"]
        if not agreement:
            return ""
        return f"{max(agreement['x_gradient'], agreement['parameter_gradient']):.0e}"

    def over_pyg(row: Row) -> str:
        return "" if row["pyg"] is None else three_digits(row["pyg"] / row["timing"]["median"])

    return columns(rows, {
        "sets x elements, T": lambda row: (
            "{sets:,} x {elements:,}, {num_steps}".format(**row["case"])
        ),
        "path": lambda row: f"{row['path']}, {row['precision']}",
        "ms, quartiles": lambda row: quartiles(row["timing"]),
        "MiB": lambda row: "" if row["peak_bytes"] is None else mebibytes(row["peak_bytes"]),
        "x PyG": over_pyg,
        "error y": lambda row: f"{row['agreement']['output']:.0e}" if row["agreement"] else "",
        "error g": gradient_error,
    })  # fmt: skip


def summary(name: str, cells: dict[str, tuple[str, str, str]]) -> str:
    """Milliseconds by number of sets. `cells`: path, precision and mode of each column; the
    fastest precision if that is empty."""
    found = {mode: timed_rows(name, mode) for mode in ("training", "inference")}

    def cell(sets: int, path: str, precision: str, mode: str) -> str:
        times = [
            row["timing"]["median"]
            for row in found[mode]
            if (row["case"]["sets"], row["path"]) == (sets, path)
            and row["precision"] in (precision or row["precision"])
        ]
        return f"{min(times):.3g} ms"

    return columns(group(found["training"], lambda row: row["case"]["sets"]), {
        "sets": lambda sets: f"{sets:,}",
        **{name: lambda sets, key=key: cell(sets, *key) for name, key in cells.items()},
    })  # fmt: skip


def networks() -> str:
    """Training steps of whole networks with the layer as readout."""
    rows = timed_rows("h200-networks")
    times = {
        (row["case"]["workload"], row["path"], row["precision"]): row["timing"]["median"]
        for row in rows
    }

    def cell(network: str, end: str, precision: str) -> str:
        ours = times[network, f"equipool{end}", precision]
        if network == "median":
            return f"{ours:.2f}"
        return f"{ours / times[network, f'sum{end}', precision]:.2f}"

    return columns(("gin", "median"), {
        "network": {"gin": "GIN, times the sum's", "median": "median, ms"}.__getitem__,
        "TF32, as typed": lambda network: cell(network, "", "tf32"),
        "TF32, captured": lambda network: cell(network, "-captured", "tf32"),
        "bfloat16, as typed": lambda network: cell(network, "", "bf16"),
        "bfloat16, captured": lambda network: cell(network, "-captured", "bf16"),
    })  # fmt: skip


def quarters(values: Sequence[float | None]) -> tuple[float, float, float]:
    """Quartiles; values that are not finite count as infinite."""
    ordered = sorted(math.inf if value is None else value for value in values)
    first, middle, third = (ordered[round(q * (len(ordered) - 1))] for q in (0.25, 0.5, 0.75))
    return first, middle, third


def short_spikes(rows: Sequence[Row]) -> str:
    """The three most useful rows."""
    chosen = [row for row in rows if row["setting"] == "hard" and row["option"] in SHORT]
    return columns(chosen, {
        "option": lambda row: row["option"],
        "spikes, all seeds": lambda row: str(sum(row["spikes"])),
        "largest loss, second half": lambda row: f"{quarters(row['largest'])[1]:.1e}",
        "final error": lambda row: f"{quarters(row['errors'])[1]:.1e}",
    })  # fmt: skip


def spikes(rows: Sequence[Row]) -> str:
    """What training with each option did, over the seeds."""
    return columns(rows, {
        "option": lambda row: row["option"],
        "spikes": lambda row: str(sum(row["spikes"])),
        "seeds": lambda row: str(sum(count > 0 for count in row["spikes"])),
        "not finite": lambda row: str(sum(row["not_finite"])),
        "largest loss": lambda row: f"{quarters(row['largest'])[1]:.1e}",
        "error": lambda row: f"{quarters(row['errors'])[1]:.1e}",
        "its quartiles": lambda row: "{0:.1e} to {2:.1e}".format(*quarters(row["errors"])),
        "step size": lambda row: f"{quarters(row['learning_rates'])[1]:.3f}",
    })  # fmt: skip


def blocks() -> dict[str, str]:
    found = {f"{name} training": timing(timed_rows(name)) for name in TIMED}
    found |= {
        "one H200": summary("h200-plain", {
            "PyTorch Geometric, fastest precision": ("pyg", "", "training"),
            "equipool, TF32": ("equipool", "tf32", "training"),
            "equipool, bfloat16": ("equipool", "bf16", "training"),
            "inference, TF32": ("equipool", "tf32", "inference"),
        }),
        "captured": summary("h200-plain", {
            "equipool, TF32": ("equipool-captured", "tf32", "training"),
            "equipool, bfloat16": ("equipool-captured", "bf16", "training"),
        }),
        "two cores": summary("cpu-quick", {
            "PyTorch Geometric": ("pyg", "", "training"),
            "equipool": ("equipool", "", "training"),
            "attention": ("attention", "", "training"),
            "sum": ("sum", "", "training"),
        }),
        "networks": networks(),
    }  # fmt: skip
    found["cpu-quick inference"] = timing(timed_rows("cpu-quick", "inference"))
    for name in STABILITY:
        _, parts = read_measurement(name)
        for setting, rows in group(parts["rows"], lambda row: row["setting"]).items():
            found[f"{name} {setting}"] = spikes(rows)
    found["short"] = short_spikes(parts["rows"])
    return found


def draw() -> None:
    """Time and memory of a training step over the size that varies."""
    for name, (axis, heading) in DRAWN.items():
        rows = timed_rows(name)
        with picture(f"performance-{name.partition('-')[2]}", 1, 2, (10, 4.2)) as axes:
            for ax, title in zip(axes[0], ("milliseconds", "peak memory in MiB"), strict=True):
                for (path, precision), points in group(
                    rows, lambda row: (row["path"], row["precision"])
                ).items():
                    values = [
                        row["timing"]["median"] if title == "milliseconds"
                        else (row["peak_bytes"] or 0) / 2**20 for row in points
                    ]  # fmt: skip
                    ax.plot([row["case"][axis] for row in points], values, LINES[precision],
                            color=COLORS.get(path, RIVAL), marker=MARKERS.get(path, "o"),
                            markersize=4, label=f"{path} {precision}")  # fmt: skip
                positions = sorted({row["case"][axis] for row in rows})
                ax.set(xscale="log", yscale="log", xlabel=heading, title=f"training step, {title}")
                ax.set_xticks(positions, [f"{position:,}" for position in positions])
                ax.xaxis.set_minor_locator(ticker.NullLocator())
                ax.grid(alpha=0.3)
            handles, labels = axes[0, 0].get_legend_handles_labels()
            axes[0, 0].figure.legend(handles, labels, loc="outside right center", fontsize=8)
