"""Tables of runs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from equipool.report.runs import Runs


def number(value: Any) -> str:
    """A number with three significant digits."""
    return "not finite" if pd.isna(value) else f"{value:.3g}"


def spread(values: pd.Series) -> str:
    """Mean and standard deviation.

    Example:
        >>> spread(pd.Series([1.0, 3.0])), spread(pd.Series([0.5])), spread(pd.Series([1.0, None]))
        ('2 ± 1.41', '0.5', 'not finite')
    """
    if values.isna().any() or not len(values):
        return number(float("nan"))
    return number(values.mean()) + (f" ± {number(values.std())}" if len(values) > 1 else "")


def results(runs: Runs) -> pd.DataFrame:
    """A row per method, best first: mean and deviation over its runs of the last and the best
    evaluation, and of the further metrics at the best one."""
    monitor, methods = runs.kind.monitor, runs.table.groupby("method", sort=False)
    last, best = (found.groupby("method", sort=False) for found in (runs.last(), runs.best()))
    shown = pd.DataFrame({monitor: last[monitor].agg(spread)})
    shown[f"best {monitor}"] = best[monitor].agg(spread)
    for metric in runs.kind.reported:
        shown[f"{metric} there"] = best[metric].agg(spread)
    shown["training seconds"] = methods["training seconds"].agg(spread)
    shown["runs"] = methods.size().map(str)
    order = last[monitor].mean().sort_values(ascending=runs.kind.lower_is_better)
    return shown.loc[order.index].reset_index()
