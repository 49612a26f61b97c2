"""Tables of choosing.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from records import group, read_measurement
from tables import columns, error_text, percent, three_digits

PAGE = "choosing.md"
POTENTIALS = {"trained": "the paper's", "convex": "convex"}
SOLVERS = (("trained", "Nesterov"), ("trained", "SafeguardedNesterov"),
           ("convex", "StronglyConvexNesterov"))  # fmt: skip
STEPS = (15, 400)


def blocks() -> dict[str, str]:
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
