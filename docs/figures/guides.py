"""Tables of guides, a function for each page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from records import group, read_measurement
from tables import columns, error_text, percent, three_digits

POTENTIALS = {"trained": "the paper's", "convex": "convex"}
SOLVERS = (("trained", "Nesterov"), ("trained", "SafeguardedNesterov"),
           ("convex", "StronglyConvexNesterov"))  # fmt: skip
STEPS = (15, 400)


def choosing() -> dict[str, str]:
    _, parts = read_measurement("cpu-gradients")
    solvers = {(r["state"], r["solver"]): r for r in parts["solvers"] if r["size"] == 64}
    trained = [r for r in parts["quality"] if (r["state"], r["size"]) == ("trained", 8)]
    gradients = [
        {row["way"]: row for row in rows}
        for steps, rows in group(trained, lambda row: row["num_steps"]).items()
        if steps in STEPS
    ]

    def implicit(case: Mapping[str, Any]) -> str:
        row = case["Implicit, CG"]
        return f"{error_text(row['error'])}; {percent(row['fallback'])} fell back"

    return {
        "solvers": columns((solvers[case] for case in SOLVERS), {
            "potential": lambda row: POTENTIALS[row["state"]],
            "solver": lambda row: f"`{row['solver']}`",
            "sets that converge": lambda row: percent(row["converged"]),
            "median steps": lambda row: f"{row['median_steps']:.0f}",
            "ms on one CPU core": lambda row: three_digits(row["timing"]["median"]),
        }),
        "gradients": columns(gradients, {
            "steps": lambda case: str(case["Unrolled"]["num_steps"]),
            "sets that converge": lambda case: percent(case["Unrolled"]["converged"]),
            "relative error of `Truncated(5)`": lambda case: error_text(
                case["Truncated(5)"]["error"]
            ),
            "relative error of `Implicit()`": implicit,
        }),
    }  # fmt: skip


def streams() -> dict[str, str]:
    _, parts = read_measurement("cpu-streaming")
    return {
        "edits": columns(parts["replacements"], {
            "layer": lambda row: row["layer"],
            "tolerance": lambda row: f"{row['tolerance']:.0e}",
            "steps": lambda row: f"{row['warm_steps']['median']:g}",
            "from scratch": lambda row: f"{row['scratch_steps']['median']:g}",
            "ratio": lambda row: f"{row['ratio']['median']:.2g}",
        }),
        "drift": columns(parts["drifts"], {
            "layer": lambda row: row["layer"],
            "median distance": lambda row: f"{row['median_distance']:.1e}",
            "largest distance": lambda row: f"{row['largest_distance']:.1e}",
            "sets in another minimum": lambda row: f"{row['elsewhere']} of {row['sets']}",
        }),
    }  # fmt: skip


def uncertainty() -> dict[str, str]:
    measured = read_measurement("cpu-uncertainty")[0]["networks"]
    sizes = measured["sines"]["by_size"]
    return {
        "networks": columns(measured, {
            "network": lambda name: {"sines": "neural process"}.get(name, name),
            "temperature": lambda name: f"{measured[name]['temperature']:.2g}",
            "coverage": lambda name: f"{measured[name]['coverage']:.1%}",
            "without temperature": lambda n: f"{measured[n]['coverage_without_temperature']:.1%}",
            "mean half width": lambda name: f"{measured[name]['half_width']:.2g}",
            "constant half width": lambda name: f"{measured[name]['constant_width']:.2g}",
        }),
        "sizes": columns(("1", "2", "4", "8", "12"), {
            "observations": str,
            "coverage": lambda size: f"{sizes[size]['coverage']:.1%}",
            "mean half width": lambda size: f"{sizes[size]['half_width']:.2g}",
        }),
    }  # fmt: skip


def large_sets() -> dict[str, str]:
    speeds = read_measurement("cpu-chunks")[0]["comparison"]["speed_by_cpu_seconds"]
    return {
        "speeds": columns(("chunks in host memory", "chunks on disk"), {
            "": str,
            "median": lambda name: f"{speeds[name]['median']:.2f}",
            "range": lambda name: "{lowest:.2f} to {highest:.2f}".format(**speeds[name]),
        }),
    }  # fmt: skip


BLOCKS = {
    "choosing.md": choosing,
    "streams.md": streams,
    "uncertainty.md": uncertainty,
    "large-sets.md": large_sets,
}
