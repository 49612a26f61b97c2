"""Predictions for SMILES from a trained run, and tables of them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from equipool.experiments.molecules.data import Problem, molecules_from_smiles
from equipool.experiments.molecules.data.load import print_status, with_progress
from equipool.experiments.molecules.data.table import MissingColumnError, Row, Table, read_lines
from equipool.experiments.molecules.network.layers import Units
from equipool.experiments.molecules.storage import predict_molecules
from equipool.experiments.molecules.task import SMILES, MoleculeTask
from equipool.training.config import task_from_config, training_from_config
from equipool.training.devices import Accelerator, products_in
from equipool.training.folder import RunFolder
from equipool.training.loading import load_weights
from equipool.training.step import evaluation_mode

AT_ONCE = 4096  # molecules in memory
STANDARD_INPUT = "-"
TABLES = (".csv",)
LISTS = (".smi", ".txt")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for $n$ molecules, in the order given."""

    smiles: tuple[str, ...]
    label_names: tuple[str, ...]
    values: Tensor  # [n, L] float32 on the CPU, NaN for molecules that could not be read
    problems: tuple[Problem, ...]  # those molecules, and rejected ones that were kept


class MoleculePredictor:
    """Predicts labels of molecules: probabilities, or numbers in the labels' own units.

    The prediction for a molecule does not depend on the others, except for rounding.

    Args:
        network: in evaluation mode. It gives logits for classification.
        label_names: of its outputs.
        kind: `"classification"` or `"regression"`.
        device: of the network.
        precision: one of `equipool.training.config.PRECISIONS`.
        keep_unsanitised: whether to predict molecules that RDKit rejects, if they can be parsed.
        smiles_column: SMILES column of the table that the network was trained on.

    Example:
        >>> from equipool.experiments.molecules import MoleculeTask
        >>> network = MoleculeTask("sum", depth=2, width=8).make_network(1, units=None).eval()
        >>> predictor = MoleculePredictor(network, ("active",), "classification")
        >>> found = predictor.predict(["CCO", "C1CC", "c1ccccc1"])
        >>> found.values.shape, found.values.isnan().flatten().tolist()
        (torch.Size([3, 1]), [False, True, False])
        >>> found.problems[0].row, found.problems[0].smiles
        (1, 'C1CC')
    """

    def __init__(
        self, network: nn.Module, label_names: Sequence[str], kind: str,
        device: str | torch.device = "cpu", precision: str = "32-true", *,
        keep_unsanitised: bool = False, smiles_column: str = SMILES,
    ) -> None:  # fmt: skip
        self.network, self.label_names, self.kind = network, tuple(label_names), kind
        self.device, self.precision = torch.device(device), precision
        self.keep_unsanitised, self.smiles_column = keep_unsanitised, smiles_column

    def predict(self, smiles: Sequence[str]) -> Predictions:
        """Predict the labels of these molecules, all of which are held in memory."""
        molecules, problems = molecules_from_smiles(smiles, keep_unsanitised=self.keep_unsanitised)
        values = torch.full((len(smiles), len(self.label_names)), torch.nan)
        if len(molecules):
            with products_in(self.precision), evaluation_mode(self.network):
                found = predict_molecules(self.network, molecules, self.device)
            own = found.sigmoid() if self.kind == "classification" else found
            values[molecules.source_rows] = own
        return Predictions(tuple(smiles), self.label_names, values, problems)


def load_predictor(
    run: str | Path, which: str = "best", *, device: str | torch.device | None = None
) -> MoleculePredictor:
    """Load the network of a molecules run, in the run's precision. The training data is not needed.

    Args:
        run: the run's directory.
        which: `"best"` (by validation score) or `"last"` checkpoint.
        device: where to compute (default: a GPU if there is one).
    """
    config = RunFolder(run).read_config()
    if config["task"] != MoleculeTask.name:
        raise ValueError(f"predict needs a molecules run; {run} is a {config['task']} run")
    if "data" not in config:
        raise ValueError(f"{run}: its config.json does not name the labels (expected `data`)")
    labels, kind = tuple(config["data"]["labels"]), config["data"]["kind"]
    task, precision = task_from_config(config), training_from_config(config).precision
    assert isinstance(task, MoleculeTask)
    place = Accelerator(device, precision)
    # their values are among the weights
    units = None if kind == "classification" else Units(*torch.ones(2, len(labels)))
    with redirect_stdout(sys.stderr):  # for messages about damaged checkpoints
        network = load_weights(task.make_network(len(labels), units), run, which)
    network = place.fabric.setup_module(network)
    return MoleculePredictor(
        network, labels, kind, place.device, precision,
        keep_unsanitised=task.keeps_unsanitised(), smiles_column=task.smiles or SMILES,
    )  # fmt: skip


@dataclass(frozen=True)
class Query:
    """A molecule to predict: where it is in the input, its SMILES, and cells to copy."""

    place: str
    smiles: str
    kept: tuple[str, ...] = ()


def read_queries(
    file: str, column: str | None, usual_column: str, keep: Sequence[str] = ()
) -> list[Query]:
    """Molecules of a file: a table with names in its first line, or a list with one SMILES per
    line, of which only the first word is read. Files may be compressed with gzip.

    Args:
        file: .csv, .smi or .txt, optionally followed by .gz; `-` is a list on stdin.
        column: of the table.
        usual_column: if `column` is not given.
        keep: columns of the table to copy.
    """
    path = Path(file)
    ending = (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
    if file != STANDARD_INPUT and ending in TABLES:
        return _in_table(path, usual_column if column is None else column, keep)
    if file != STANDARD_INPUT and ending not in LISTS:
        endings = ", ".join((*TABLES, *LISTS))
        raise ValueError(f"FILE is {file!r}, expected a file that ends in {endings} or .gz, or -")
    for flag, given in (("--column", column), ("--keep", ",".join(keep) or None)):
        if given is not None:
            raise ValueError(f"{flag} is {given!r}, but {file} has no columns")
    lines: Iterable[str] = sys.stdin if file == STANDARD_INPUT else read_lines(path)
    return [
        Query(f"row {row} (line {row + 1})", next(iter(line.split()), ""))
        for row, line in enumerate(lines)
    ]


def _in_table(path: Path, column: str, keep: Sequence[str]) -> list[Query]:
    table = Table(path)
    try:
        at = table.position(column)
    except MissingColumnError as error:
        raise ValueError(f"{error}; choose the SMILES column with --column") from error
    kept = [table.position(name) for name in keep]

    def query(row: Row) -> Query:
        return Query(str(row), row.cells[at], tuple(row.cells[one] for one in kept))

    return list(table.read(query))


def write_predictions(
    predictor: MoleculePredictor, queries: Sequence[Query], keep: Sequence[str], out: TextIO
) -> int:
    """Write a row for each molecule after the names of the columns, those to `keep` first. Returns
    the number of molecules that could not be read; their rows have empty cells."""
    writer = csv.writer(out, lineterminator="\n")
    written = ["smiles", *predictor.label_names]
    writer.writerow([*(f"given {name}" if name in written else name for name in keep), *written])
    batches: Iterable[Sequence[Query]] = (
        queries[first : first + AT_ONCE] for first in range(0, len(queries), AT_ONCE)
    )
    if len(queries) > AT_ONCE:
        batches = with_progress(batches, "molecules", len(queries), len)
    return sum(_write_some(predictor, some, writer) for some in batches)


def _write_some(predictor: MoleculePredictor, queries: Sequence[Query], writer: Any) -> int:
    found = predictor.predict([one.smiles for one in queries])
    unread = {problem.row for problem in found.problems if not problem.kept}
    for row, (one, values) in enumerate(zip(queries, found.values.numpy(), strict=True)):
        # str gives as few digits as identify the number
        cells = ("" if row in unread else str(value) for value in values)
        writer.writerow([*one.kept, one.smiles, *cells])
    for problem in found.problems:
        kept = " (predicted nevertheless)" if problem.kept else ""
        place = queries[problem.row].place
        print_status(f"{place}: {problem.smiles!r}: {problem.reason}{kept}")
    return len(unread)
