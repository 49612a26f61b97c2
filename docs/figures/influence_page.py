"""Tables and picture of influence.md."""

from __future__ import annotations

from drawing import legend_below, picture, styles
from records import read_measurement
from tables import columns

PAGE = "influence.md"
RECORDS = {
    "median": "cpu-influence",
    "jets": "cpu-influence-jets",
    "molhiv": "cpu-influence-molhiv",
}
SCORES = ("influence", "deleting each element", "gradient times input", "attention weights",
          "random")  # fmt: skip


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def blocks() -> dict[str, str]:
    records = {name: read_measurement(file) for name, file in RECORDS.items()}
    accuracy = [
        row | {"network": name} for name, (_, rows) in records.items() for row in rows["accuracy"]
    ]
    times = [
        header["time"] | {"network": name, "converged": header["converged"]}
        for name, (header, _) in records.items()
    ]
    curves = {
        f"{name}, {network}": found["by"]
        for name, (header, _) in records.items()
        for network, found in header["curves"].items()
    }
    return {
        "accuracy": columns(accuracy, {
            "network": lambda row: row["network"],
            "search": lambda row: row["search"],
            "elements, of sets": lambda row: f"{row['elements']:,} of {row['sets']}",
            "rank correlation": lambda row: f"{row['rank_correlation']:.3f}",
            "worst set": lambda row: f"{row['rank_correlation_worst']:.2f}",
            "relative error, median": lambda row: percent(row["median_relative_error"]),
            "90 %": lambda row: percent(row["relative_error_90"]),
        }),
        "times": columns(times, {
            "network": lambda row: row["network"],
            "elements, of sets": lambda row: f"{row['elements']:,} of {row['sets']}",
            "output channels": lambda row: str(row["channels"]),
            "sets that converge": lambda row: ", ".join(
                f"{percent(share)} in {steps} steps" for steps, share in row["converged"].items()
            ),
            "time, in solves": lambda row: (
                "{median:.1f} ({fastest:.1f} to {slowest:.1f})".format(**row["ratio"])
            ),
        }),
        "deletion": columns(curves, {
            "network": str,
            **{
                score: lambda name, score=score: (
                    "{area:+.2f} ({size_area:.2f})".format(**curves[name][score])
                    if score in curves[name]
                    else "-"
                )
                for score in SCORES
            },
        }),
    }  # fmt: skip


def draw() -> None:
    """The deletion curves of jets, a panel for each network."""
    header, _ = read_measurement(RECORDS["jets"])
    drawn = styles([score for curves in header["curves"].values() for score in curves["by"]])
    percents = [100 * fraction for fraction in header["fractions"]]
    with picture("influence-deletion", 1, len(header["curves"]), (9, 4), sharey=True) as axes:
        for ax, (network, curves) in zip(axes[0], header["curves"].items(), strict=True):
            for score, curve in curves["by"].items():
                ax.plot(percents, curve["change"], **drawn[score])
            ax.set(title=f"{network} network", xlabel="elements removed, %")
        axes[0, 0].set_ylabel("change of the logit, in its deviations")
        legend_below(axes, drawn)
