import multiprocessing
import signal
import subprocess
import sys

import numpy as np
import pytest
from molecule_files import BROKEN, ODD, write_csv
from odd_splits import Ending, Failing, Printing

from equipool.experiments.molecules.data import CsvSource, ScaffoldSplit, featurize
from equipool.experiments.molecules.data.featurize import SmilesRows

pytestmark = pytest.mark.processes

SMILES = [*ODD, *BROKEN]


def batches(number):
    """Batches of different sizes."""
    for at in range(number):
        smiles = SMILES[at % 5 :]
        rows = [100 * at + row for row in range(len(smiles))]
        labels = np.array(rows, np.float32).reshape(-1, 1)
        yield SmilesRows(rows, smiles, ["cell"] * len(rows), labels)


@pytest.fixture
def two_workers(monkeypatch):
    monkeypatch.setattr(featurize, "MIN_ROWS", 0)
    monkeypatch.setattr(featurize, "num_cores", lambda: 2)


def run(found, split=None):
    return featurize.featurize_all(found, 100, split or ScaffoldSplit(), False)


def test_several_processes_give_what_one_gives(two_workers, tmp_path, monkeypatch, capfd):
    """Also in a folder whose files have the names of modules. What workers print goes to standard
    error. Two workers have four batches read ahead."""
    for name in ("queue", "pickle", "json", "multiprocessing"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(7)")
    monkeypatch.chdir(tmp_path)
    read, chunks = [], []
    for chunk in run((read.append(batch) or batch for batch in batches(9)), Printing()):
        chunks.append(chunk)
        assert len(read) == min(len(chunks) + 3, 9)
    captured = capfd.readouterr()
    assert captured.out == ""
    number = sum(len(chunk.groups) for chunk in chunks)
    assert captured.err.count("printed") == captured.err.count("written") == number
    monkeypatch.setattr(featurize, "MIN_ROWS", 100)
    expected = list(run(batches(9), Printing()))
    assert len(chunks) == len(expected) == 9
    for chunk, same in zip(chunks, expected, strict=True):
        for name in ("num_atoms", "num_bonds", "atoms", "bonds", "ends", "labels", "source_rows"):
            found = getattr(chunk, name)
            np.testing.assert_array_equal(found, getattr(same, name))
            assert found.dtype == getattr(same, name).dtype
        assert (chunk.groups, chunk.problems) == (same.groups, same.problems)
        assert chunk.num_rows == same.num_rows


def test_a_worker_that_fails_or_dies_is_reported(two_workers):
    before = set(multiprocessing.active_children())  # other tests may have left some
    with pytest.raises(LookupError, match="no group for C") as raised:
        list(run(batches(50), Failing()))
    assert set(multiprocessing.active_children()) <= before
    assert "odd_splits.py" in str(raised.value.__cause__), "the traceback of the worker"
    with pytest.raises(ChildProcessError, match="a featurizing process ended unexpectedly"):
        list(run(batches(3), Ending()))


def script(tmp_path, last):
    """A script without a guard, which featurizes a table in two processes."""
    table = write_csv(tmp_path / "table.csv", ["smiles", "A"], [["CC", 0]] * 2000)
    path = tmp_path / "script.py"
    path.write_text(f"""
import os, signal
from equipool.experiments.molecules.data import CsvSource, featurize
featurize.MIN_ROWS, featurize.num_cores = 0, lambda: 2
source = CsvSource({str(table)!r})
chunks = source.chunks(source.examine())
{last}
""")
    return [sys.executable, str(path)]


def test_workers_end_when_their_parent_is_killed(tmp_path):
    """They hold standard error open, which is read to its end."""
    command = script(tmp_path, "next(chunks)\nos.kill(os.getpid(), signal.SIGKILL)")
    ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=300)
    assert ended.returncode == -signal.SIGKILL


def test_an_interrupt_ends_the_workers_quietly(tmp_path):
    """Ctrl-C reaches the workers as well; only the parent reports it. The script has no guard."""
    last = """
signal.signal(signal.SIGINT, signal.default_int_handler)
print(next(chunks).num_rows, flush=True)
os.killpg(0, signal.SIGINT)
list(chunks)
"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ended = subprocess.run(script(tmp_path, last), timeout=300, start_new_session=True, **pipes)
    assert ended.returncode == -signal.SIGINT, ended.stderr
    assert ended.stdout == "512\n"
    assert ended.stderr.count("Traceback") == 1
    assert ended.stderr.strip().endswith("KeyboardInterrupt")


def test_the_table_is_read_as_its_molecules_are_asked_for(tmp_path, monkeypatch):
    read = []
    original = CsvSource.batches

    def watched(self):
        for batch in original(self):
            read.append(batch)
            yield batch

    monkeypatch.setattr(CsvSource, "batches", watched)
    source = CsvSource(write_csv(tmp_path / "table.csv", ["smiles", "A"], [["CC", 0]] * 2000))
    next(source.chunks(source.examine()))
    assert len(read) == 1
