import signal
import subprocess
import sys

import numpy as np
import pytest
from molecule_files import BROKEN, ODD
from odd_splits import Ending, Failing, Printing

from equipool.experiments.molecules.data import LeaveOut, ScaffoldSplit
from equipool.experiments.molecules.data import featurising as featurising_module
from equipool.experiments.molecules.data.featurising import featurised
from equipool.experiments.molecules.data.making import Batch
from equipool.experiments.molecules.data.workers import WorkerError

pytestmark = pytest.mark.processes

SMILES = [*ODD, *BROKEN]


def batches(number):
    """Batches of different sizes."""
    for at in range(number):
        smiles = SMILES[at % 5 :]
        rows = [100 * at + row for row in range(len(smiles))]
        labels = np.array(rows, np.float32).reshape(-1, 1)
        yield Batch(rows, smiles, ["cell"] * len(rows), labels)


@pytest.fixture
def two_workers(monkeypatch):
    monkeypatch.setattr(featurising_module, "FEW", 0)
    monkeypatch.setattr(featurising_module, "num_cores", lambda: 2)


def run(found, split=None):
    return featurised(found, 100, split or ScaffoldSplit(), LeaveOut())


def test_several_processes_make_what_one_makes(two_workers, monkeypatch):
    pieces = list(run(batches(9)))
    monkeypatch.setattr(featurising_module, "FEW", 100)
    expected = list(run(batches(9)))
    assert len(pieces) == len(expected) == 9
    for piece, same in zip(pieces, expected, strict=True):
        for name in ("num_atoms", "num_bonds", "atoms", "bonds", "ends", "labels", "source_rows"):
            found = getattr(piece, name)
            np.testing.assert_array_equal(found, getattr(same, name))
            assert found.dtype == getattr(same, name).dtype
        assert (piece.groups, piece.problems) == (same.groups, same.problems)
        assert piece.num_rows == same.num_rows


def test_batches_are_read_as_they_are_needed(two_workers):
    """Of a long table, four batches are read ahead of two workers, which end when it is left."""
    read = []
    pieces = run(read.append(batch) or batch for batch in batches(50))
    for number in range(4, 7):
        next(pieces)
        assert len(read) == number
    pieces.close()
    assert len(read) == 6


def test_an_error_in_a_process_is_told(two_workers):
    with pytest.raises(WorkerError) as raised:
        list(run(batches(3), Failing()))
    reason = "a process that makes molecules failed: LookupError: no group for C"
    assert str(raised.value) == reason
    (trace,) = raised.value.__notes__
    assert "odd_splits.py" in trace


def test_commands_tell_a_worker_s_failure_without_a_traceback(capsys):
    typer = pytest.importorskip("typer")
    from equipool.cli.console import plain_errors

    with pytest.raises(typer.Exit), plain_errors():
        raise WorkerError("ended")
    assert capsys.readouterr().err == "Error: ended\n"


def test_a_process_that_ends_is_told(two_workers):
    with pytest.raises(WorkerError, match="ended with code 3"):
        list(run(batches(3), Ending()))


def test_modules_of_the_working_folder_are_not_executed(two_workers, tmp_path, monkeypatch):
    for name in ("queue", "pickle", "json"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(7)")
    monkeypatch.chdir(tmp_path)
    assert len(list(run(batches(2)))) == 2


def test_what_is_printed_is_no_answer(two_workers, capfd):
    pieces = list(run(batches(2), Printing()))
    assert [piece.groups for piece in pieces] == [ODD, ODD[1:]]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("printed") == captured.err.count("written") == 2 * len(ODD) - 1


def test_workers_end_when_their_starter_is_killed():
    """They hold the error output open, which is read until nobody does."""
    code = """
import os, signal
from equipool.experiments.molecules.data.workers import Workers
workers = Workers(2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stderr == b""
