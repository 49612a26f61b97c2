"""The script that checks the choice of `--threads auto`."""

import json

import cpu_threads
import pytest
import torch
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(cpu_threads, "TURN", 0.0)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("slower", "status"), [(1.1, 0), (1.3, 1)])
def test_a_choice_that_costs_too_much_fails(slower, status, monkeypatch, tmp_path):
    out = tmp_path / "record.json"
    found = {1: 10.0 * slower, 2: 10.0}
    monkeypatch.setattr(cpu_threads, "measure", lambda step, counts: {1: 0.01, 2: 0.02})
    monkeypatch.setattr(cpu_threads, "long_run", lambda step, counts, turns: found)
    monkeypatch.setattr(cpu_threads, "WORKLOADS", {"nothing": lambda: lambda: None})
    done = CliRunner().invoke(cpu_threads.app, ["--choices", "2", "--out", str(out)])
    assert done.exit_code == status
    rows = json.loads(out.read_text())["rows"]
    assert [row["neighbours"] for row in rows] == ["none", "one busy process"]
    assert all(row["chosen"] == [1, 1] for row in rows)
    assert rows[0]["worst"] == pytest.approx(slower)


def test_steps_of_all_numbers_are_averaged(monkeypatch):
    now = 0.0
    monkeypatch.setattr(cpu_threads, "perf_counter", lambda: now)
    monkeypatch.setattr(cpu_threads, "TURN", 0.1)

    def step():
        nonlocal now
        now += {1: 0.01, 2: 0.05}[torch.get_num_threads()]

    found = cpu_threads.long_run(step, (1, 2), turns=3)
    assert found == pytest.approx({1: 10.0, 2: 50.0})


def test_busy_processes_end_with_the_block():
    with cpu_threads.busy_processes(1) as processes:
        assert [process.poll() for process in processes] == [None]
    assert processes[0].poll() is not None


@pytest.mark.parametrize("name", cpu_threads.WORKLOADS)
def test_workloads_run(name):
    torch.set_num_threads(1)
    cpu_threads.WORKLOADS[name]()()
