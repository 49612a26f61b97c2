"""Tables of the trials of `bags.py`: accuracy, ranks and significance."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import rankdata, studentized_range, wilcoxon

Row = Mapping[str, Any]
HEADER = "header"
SIGNIFICANCE = 0.05
OURS = "equilibrium"


def read_lines(file: Path) -> tuple[list[Row], list[Row]]:
    """The headers and the rows of a record of JSON lines; none if there is no such file."""
    if not file.exists():
        return [], []
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
    except ValueError as error:
        raise ValueError(f"{file} has a line that is not JSON: {error}") from error
    headers = [line[HEADER] for line in lines if HEADER in line]
    return headers, [line for line in lines if HEADER not in line]


def append_line(file: Path, content: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(content) + "\n")


def over_repeats(rows: Sequence[Row], measure: str) -> tuple[float, float | None] | None:
    """Mean over the repeats of the mean over their folds, and its deviation; None without numbers.
    One repeat has no deviation."""
    repeats: dict[int, list[float]] = {}
    for row in rows:
        if row[measure] is not None:
            repeats.setdefault(row["repeat"], []).append(row[measure])
    found = [statistics.fmean(values) for values in repeats.values()]
    if not found:
        return None
    return statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def common_folds(rows: Sequence[Row], methods: Sequence[str]) -> list[Row]:
    """The rows of these methods on the folds that all of them have run."""
    seen: dict[tuple[Any, ...], set[str]] = {}
    for row in rows:
        seen.setdefault((row["dataset"], row["repeat"], row["fold"]), set()).add(row["method"])
    return [
        row
        for row in rows
        if row["method"] in methods
        and seen[row["dataset"], row["repeat"], row["fold"]].issuperset(methods)
    ]


@dataclass(frozen=True)
class Ranking:
    """Average ranks over data sets, 1 is best; ties share their ranks. Two methods whose ranks
    differ by less than `critical_difference` do not differ significantly by Nemenyi's test.
    `p_values` are those of Wilcoxon's signed rank test of each method against equilibrium, over the
    data sets, after Holm's correction."""

    ranks: dict[str, float]
    num_datasets: int
    critical_difference: float
    p_values: dict[str, float]


def rank(rows: Sequence[Row], methods: Sequence[str], measure: str = "accuracy") -> Ranking | None:
    """Rank the methods on the folds that all of them have run; None if there are no such folds."""
    shared = common_folds(rows, methods)
    datasets = list(dict.fromkeys(row["dataset"] for row in shared))
    if not datasets or len(methods) < 2:
        return None
    means = []
    for dataset in datasets:
        found = (over_repeats(select(shared, dataset=dataset, method=m), measure) for m in methods)
        means.append([-math.inf if one is None else one[0] for one in found])
    ranks = [rankdata([-value for value in row]) for row in means]
    average = {m: statistics.fmean(row[at] for row in ranks) for at, m in enumerate(methods)}
    tested = {}
    if OURS in methods:
        ours = [row[methods.index(OURS)] for row in means]
        for at, method in enumerate(methods):
            theirs = [row[at] for row in means]
            if method != OURS and theirs != ours:
                tested[method] = float(wilcoxon(ours, theirs).pvalue)
    difference = nemenyi(len(methods), len(datasets))
    return Ranking(average, len(datasets), difference, holm(tested))


def nemenyi(num_methods: int, num_datasets: int) -> float:
    r"""The critical difference $q \sqrt{k (k + 1) / (6 N)}$ of average ranks.

    Example:
        >>> round(nemenyi(5, 30), 2)  # Demsar, 2006: q = 2.728 for five methods
        1.11
    """
    q = studentized_range.ppf(1 - SIGNIFICANCE, num_methods, math.inf) / math.sqrt(2)
    return float(q * math.sqrt(num_methods * (num_methods + 1) / (6 * num_datasets)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for several tests.

    Example:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    found, largest = {}, 0.0
    for at, (name, value) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        largest = max(largest, min(1.0, (len(p_values) - at) * value))
        found[name] = largest
    return found
