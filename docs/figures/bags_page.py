"""Tables and picture of reproduction/bags.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drawing import BLUE, ORANGE, picture
from records import RECORDS, group, read_lines
from scipy.stats import rankdata, studentized_range, wilcoxon
from tables import columns, table

PAGE = "reproduction/bags.md"
METHODS = ("equilibrium", "attention", "gated-attention", "mean", "sum", "max", "set-transformer",
           "pna", "extra-trees", "boosting", "svm")  # fmt: skip
CLASSICS = ("musk1", "musk2", "fox", "tiger", "elephant")
OTHERS = ("jets", "cdnow")  # scored by the area under the ROC curve
PLANNED = dict.fromkeys(CLASSICS, 50) | dict.fromkeys(OTHERS, 25)  # folds
OURS = "equilibrium"
SIGNIFICANCE = 0.05

Row = Mapping[str, Any]


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def classics(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["dataset"] in CLASSICS]


def on_all_classics(rows: Sequence[Row]) -> list[str]:
    """The methods that have been run on every classic, if only on some folds."""
    run = {(row["method"], row["dataset"]) for row in rows}
    return [method for method in METHODS if all((method, name) in run for name in CLASSICS)]


def over_repeats(rows: Sequence[Row], measure: str) -> list[float]:
    """The mean over the folds of each repeat."""
    known = [row for row in rows if row[measure] is not None]
    repeats = group(known, lambda row: row["repeat"]).values()
    return [statistics.fmean(row[measure] for row in some) for some in repeats]


def over_datasets(rows: Sequence[Row], measure: str) -> float:
    """The mean over the data sets, in percent."""
    datasets = group(rows, lambda row: row["dataset"]).values()
    return 100 * statistics.fmean(statistics.fmean(over_repeats(d, measure)) for d in datasets)


def results(rows: Sequence[Row], datasets: Sequence[str], measure: str = "accuracy") -> str:
    """The measure of each method on each data set, with the number of folds that have been run,
    and the mean over the data sets if they are the classics."""

    def cell(rows: Sequence[Row]) -> str:
        found = over_repeats(rows, measure)
        if not found:
            return "-"
        deviation = f" ± {100 * statistics.stdev(found):.1f}" if len(found) > 1 else ""
        return f"{100 * statistics.fmean(found):.1f}{deviation} ({len(rows)})"

    whole = on_all_classics(rows)

    def mean(method: str) -> str:
        own = classics(select(rows, method=method))
        return f"{over_datasets(own, measure):.1f}" if method in whole else "-"

    return columns(METHODS, {
        "method": str,
        **{
            name: lambda method, name=name: cell(select(rows, method=method, dataset=name))
            for name in datasets
        },
        **({"mean": mean} if datasets == CLASSICS else {}),
    })  # fmt: skip


def ranks(rows: Sequence[Row]) -> str:
    """Average ranks of the methods that have been run on all classics, over their common folds; 1
    is best. `p` is that of Wilcoxon's signed rank test against equilibrium, after Holm."""
    methods = on_all_classics(rows)
    folds = group(classics(rows), lambda row: (row["dataset"], row["repeat"], row["fold"]))
    common = [
        row
        for some in folds.values()
        if {row["method"] for row in some} >= set(methods)
        for row in some
    ]
    means = [
        [
            statistics.fmean(over_repeats(select(common, dataset=name, method=m), "accuracy"))
            for m in methods
        ]
        for name in CLASSICS
    ]
    ranked = [rankdata([-value for value in row]) for row in means]
    average = dict(zip(methods, map(statistics.fmean, zip(*ranked, strict=True)), strict=True))
    scores = dict(zip(methods, zip(*means, strict=True), strict=True))
    p_values = holm({
        method: float(wilcoxon(scores[OURS], theirs).pvalue)
        for method, theirs in scores.items()
        if method != OURS
    })  # fmt: skip
    count = len(select(common, method=OURS))
    difference = nemenyi(len(methods), len(CLASSICS))
    heading = f"average rank ({count} folds; critical difference {difference:.2f})"
    return columns(sorted(methods, key=average.__getitem__), {
        "method": str,
        heading: lambda method: f"{average[method]:.2f}",
        "p, Wilcoxon and Holm": lambda m: f"{p_values[m]:.2f}" if m in p_values else "-",
    })  # fmt: skip


def nemenyi(num_methods: int, num_datasets: int) -> float:
    r"""The critical difference $q \sqrt{k (k + 1) / (6 N)}$ of average ranks."""
    q = studentized_range.ppf(1 - SIGNIFICANCE, num_methods, math.inf) / math.sqrt(2)
    return float(q * math.sqrt(num_methods * (num_methods + 1) / (6 * num_datasets)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for several tests."""
    found, largest = {}, 0.0
    for at, (name, value) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        largest = max(largest, min(1.0, (len(p_values) - at) * value))
        found[name] = largest
    return found


def peeked(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """Mean accuracy on the classics as measured, and with threshold and number of training steps
    chosen on the test fold: the first repeat, for which other lengths are trained."""
    first = classics(select(rows, repeat=0))
    return [
        (method, over_datasets(own, "accuracy"), over_datasets(own, "peeked"))
        for method in on_all_classics(first)
        for own in [select(first, method=method)]
    ]


def clipping(rows: Sequence[Row], unclipped: Sequence[Row]) -> str:
    """Mean accuracy and area on the classics in the first repeat, without and with clipped
    features, of the methods that have been run on all of them both ways."""

    def trial(row: Row) -> tuple[Any, ...]:
        return row["method"], row["dataset"], row["fold"]

    before, after = (classics(select(some, repeat=0)) for some in (unclipped, rows))
    shared = set(map(trial, before)) & set(map(trial, after))
    before, after = ([row for row in some if trial(row) in shared] for some in (before, after))

    def cell(rows: Sequence[Row], measure: str) -> Any:
        return lambda method: f"{over_datasets(select(rows, method=method), measure):.1f}"

    cells = [str, *(cell(some, name) for name in ("accuracy", "auc") for some in (before, after))]
    headings = ("method", "accuracy, not clipped", "clipped", "ROC-AUC, not clipped", "clipped")
    return table(headings, ([one(m) for one in cells] for m in on_all_classics(before)))


def assumptions(rows: Sequence[Row]) -> str:
    """Areas under the ROC curve on fresh bags, and on those where the shortcut misleads."""

    def cell(rows: Sequence[Row]) -> str:
        usual, shifted = (
            statistics.fmean(row[f"{kind}_auc"] for row in rows) for kind in ("usual", "shifted")
        )
        passes = all(row["shifted_auc"] > 0.5 for row in rows)
        return f"{usual:.2f} / {shifted:.2f}, {'passes' if passes else 'fails'}"

    names = group(rows, lambda row: row["name"])
    return columns(group(rows, lambda row: row["method"]), {
        "method": str,
        **{name: lambda m, name=name: cell(select(names[name], method=m)) for name in names},
    })  # fmt: skip


def read() -> dict[str, list[Row]]:
    """The trials by study, and the first lines of their runs as `headers`."""
    lines = read_lines(RECORDS / "bags.jsonl")
    trials = group((line for line in lines if "header" not in line), lambda line: line["study"])
    headers = [line["header"] for line in lines if "header" in line and line["study"] == "folds"]
    return trials | {"headers": headers}


def blocks() -> dict[str, str]:
    found = read()
    rows = found["folds"]
    machines = " and ".join(sorted({header["hardware"]["cpu"] for header in found["headers"]}))
    torches = " and ".join(sorted({header["versions"]["torch"] for header in found["headers"]}))
    return {
        "ran_on": f"{len(rows):,} of {sum(PLANNED.values()) * len(METHODS):,} trials "
        f"({len(METHODS)} methods) have been run, on {machines}, torch {torches}.",
        "results": results(rows, CLASSICS),
        "others": results(rows, OTHERS, "auc"),
        "ranks": ranks(rows),
        "peeked": columns(peeked(rows), {
            "method": lambda row: row[0],
            "as measured": lambda row: f"{row[1]:.1f}",
            "chosen on the test fold": lambda row: f"{row[2]:.1f}",
            "difference": lambda row: f"{row[2] - row[1]:+.1f}",
        }),
        "assumptions": assumptions(found["assumptions"]),
        "clipping": clipping(rows, found["unclipped"]),
    }  # fmt: skip


def draw() -> None:
    """Both accuracies of each method."""
    rows = peeked(read()["folds"])
    with picture("bags-peeked", 1, 1, (7, 3.6)) as axes:
        ax = axes[0, 0]
        for at, (_, honest, chosen) in enumerate(rows):
            ax.plot([honest, chosen], [at, at], color="#999999", zorder=1)
            ax.scatter([honest], [at], color=BLUE, zorder=2)
            ax.scatter([chosen], [at], color=ORANGE, marker="s", zorder=2)
        ax.set_yticks(range(len(rows)), [row[0] for row in rows])
        ax.invert_yaxis()
        ax.set(title="as measured (dots), chosen on the test fold (squares)", xlabel="accuracy, %")
