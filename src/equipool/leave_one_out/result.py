"""The result: numbers per element, a ranked table and a figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipool.checks import as_count
from equipool.figures import draw_bars, make_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UP, DOWN = "#0072B2", "#D55E00"


@dataclass(frozen=True, eq=False)
class Influence:
    """The result of `influence`. Rows are elements in the shape and order of the given x: `[N]`, or
    `[B, L]` for a padded batch; the rows of a nested tensor are those of its values. With `groups`
    there is one row per set and group instead. Print it for a ranked table."""

    y: Tensor
    """`[B, K]` the outputs."""

    change: Tensor
    """`[rows, K]` the output without the element, minus the output. Zero for padding, NaN for sets
    that are not finite and where `solved` is False by Newton's method."""

    effect: Tensor | None
    """`[rows, ...]` the function of the output without the element, minus that of the output; None
    without a function."""

    gradient: Tensor | None
    """`[N, C]` the gradient of the function, summed over its outputs, by the element's features;
    None unless requested. Always one row per element."""

    converged: Tensor
    """`[B]` whether the layer's search reached the tolerance of its `steps`."""

    solved: Tensor
    """`[rows]` by Newton's method, whether the energy without the element curves upwards at y (its
    Hessian is positive definite); by exact searches, whether the search reached the tolerance.
    False for padding."""

    set_index: Tensor
    """`[rows]` the set of each row; -1 for padding."""

    group_index: Tensor | None
    """`[rows]` the group of each row, if groups were given. Rows are sorted by set, then group."""

    method: str
    """`"newton"` or `"exact"`."""

    @property
    def score(self) -> Tensor:
        """`[rows]` one number per row: the effect if it is one, else the norm of the effect, or of
        the change without a function."""
        values = self.change if self.effect is None else self.effect
        rows = self.set_index.shape
        values = values.double().reshape(*rows, values.shape[len(rows) :].numel())
        if self._has_sign:
            return values.squeeze(-1)
        return torch.linalg.vector_norm(values, dim=-1)

    @property
    def _has_sign(self) -> bool:
        """Whether the effect is one number."""
        rows = self.set_index.dim()
        return self.effect is not None and self.effect.shape[rows:].numel() == 1

    def ranked(self, num: int | None = None, of_set: int | None = None) -> Tensor:
        """The numbers of the rows, of x's first two dimensions taken as one for a padded batch, in
        the order of the score's absolute value, largest first; rows without a score are left out.

        Args:
            num: how many at most. Default: all.
            of_set: the set whose rows to rank. Default: all sets.
        """
        score, sets = self.score.flatten().abs(), self.set_index.flatten()
        wanted = (sets >= 0) & ~score.isnan()
        if of_set is not None:
            wanted &= sets == of_set
        (rows,) = wanted.nonzero(as_tuple=True)
        order = torch.argsort(score[rows], descending=True, stable=True)
        return rows[order[:num]]

    def table(self, num: int = 10, of_set: int | None = None) -> str:
        """The rows with the largest scores as text.

        Args:
            num: how many rows to show.
            of_set: the set whose rows to show. Default: all sets.
        """
        lines = [f"{'set':>8}  {self._kind:>8}  {self._value:>10}"]
        scores = self.score.flatten()
        for row in self.ranked(as_count("num", num), of_set).tolist():
            set_number, name = self._name(row)
            lines.append(f"{set_number:8}  {name:8}  {float(scores[row]):10.4g}")
        return "\n".join(lines)

    def _name(self, row: int) -> tuple[int, int]:
        """The set of a row, and its group or its number in x's last dimension of elements."""
        set_number = int(self.set_index.flatten()[row])
        if self.group_index is not None:
            return set_number, int(self.group_index[row])
        return set_number, row % self.set_index.shape[-1]

    @property
    def _kind(self) -> str:
        return "element" if self.group_index is None else "group"

    @property
    def _value(self) -> str:
        """What the score is."""
        if self._has_sign:
            return "effect"
        return "|change|" if self.effect is None else "|effect|"

    def __repr__(self) -> str:
        rows, sets = list(self.set_index.shape), self.converged.shape[0]
        return f"Influence(rows={rows}, sets={sets}, method={self.method!r})"

    def __str__(self) -> str:
        num_rows, num_sets = int((self.set_index >= 0).sum()), self.converged.shape[0]
        by = "one Newton step" if self.method == "newton" else "a search without it"
        return (
            f"Leaving out each of {num_rows:,} {self._kind}s, by {by}; {num_sets:,} sets, "
            f"{int(self.converged.sum()):,} of them converged\n\n{self.table()}"
        )

    def figure(self, num: int = 20, of_set: int | None = None) -> Figure:
        """Bars of the largest scores. Needs matplotlib. The arguments are those of `table`."""
        rows = self.ranked(as_count("num", num, least=1), of_set).tolist()
        scores = self.score.flatten()
        values = [float(scores[row]) for row in rows]
        named = (self._name(row) for row in rows)
        names = [f"set {set_number}, {self._kind} {name}" for set_number, name in named]
        figure = make_figure(7, 1 + 0.25 * max(len(rows), 2))
        axes = figure.subplots()
        colors = [UP if value >= 0 else DOWN for value in values]
        draw_bars(axes, names, values, [f"{value:.3g}" for value in values], colors)
        axes.invert_yaxis()
        axes.set_title(f"{self._value} of leaving out", loc="left", fontsize=10)
        return figure

    def save(self, path: str | Path, num: int = 20, of_set: int | None = None) -> None:
        """Write the figure to a file, whose suffix chooses the format."""
        save_figure(self.figure(num, of_set), path)
