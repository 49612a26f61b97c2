"""The number of threads: measured, printed, and kept when a run is resumed."""

import pytest
import torch

import molecule_table
from equipool.cli import threads
from equipool.training import read_record

FAST = {1: 0.010, 4: 0.004}
SLOW = {1: 0.010, 4: 0.025}
HARDLY_FASTER = {1: 0.010, 4: 0.0095}


class Clock:
    """A clock that a step of work moves on, by the time it takes with this number of threads."""

    def __init__(self, seconds, now=0.0):
        self.seconds, self.now, self.steps = seconds, now, []

    def __call__(self):
        return self.now

    def step(self):
        self.steps.append(torch.get_num_threads())
        self.now += self.seconds[self.steps[-1]]


@pytest.fixture(autouse=True)
def four_threads():
    """As on a machine with four cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def clock(monkeypatch):
    def use(seconds):
        clock = Clock(seconds)
        monkeypatch.setattr(threads, "perf_counter", clock)
        return clock

    return use


@pytest.fixture
def measured(monkeypatch):
    """Measurements of a step give these seconds; the list has the steps that were measured."""
    steps = []

    def use(seconds):
        torch.set_num_threads(4)
        monkeypatch.setattr(threads, "measure", lambda step, counts: steps.append(step) or seconds)
        return steps

    return use


@pytest.mark.parametrize(("seconds", "best"), [(FAST, 4), (SLOW, 1), (HARDLY_FASTER, 1)])
def test_the_faster_number_is_taken_and_printed(clock, seconds, best):
    taken, printed = clock(seconds), []
    with threads.using_threads(None, "cpu", lambda: taken.step, report=printed.append):
        assert torch.get_num_threads() == best
    assert torch.get_num_threads() == 4
    times = f"10 ms per step with 1, {1000 * seconds[4]:.3g} ms per step with 4"
    assert printed == [f"Threads: {best} ({times})"]
    assert set(taken.steps) == {1, 4}


def test_a_disturbance_does_not_decide(clock):
    """Neither the slowest turn counts, nor the first one, which warms up."""
    taken = clock(FAST)
    step = taken.step

    def disturbed():
        step()
        if len(taken.steps) in (2, 60):
            taken.now += 0.2

    assert threads.measure(disturbed, (1, 4)) == pytest.approx(FAST)


def test_turns_in_which_threads_wait_for_each_other_count(clock):
    """Beside a busy process, several threads are fast in most turns and very slow in the others."""
    taken = clock(FAST)
    turns = []

    def step():
        count = torch.get_num_threads()
        if not turns or turns[-1] != count:
            turns.append(count)
        taken.step()
        if count == 4 and len(turns) // 2 in (3, 5):
            taken.now += 0.1

    seconds = threads.measure(step, (1, 4))
    assert seconds[1] == pytest.approx(FAST[1])
    assert threads.faster(seconds) == 1


def test_slow_steps_are_measured_twice_at_most(clock):
    taken = clock({1: 30.0, 4: 20.0})
    assert threads.measure(taken.step, (1, 4)) == {1: 30.0, 4: 20.0}
    assert taken.steps == [1, 4, 1, 4]


def test_a_crowded_machine_is_noticed_in_one_turn(clock):
    taken = clock({1: 0.1, 4: 30.0})
    assert threads.measure(taken.step, (1, 4)) == pytest.approx({1: 0.1, 4: 30.0})
    assert taken.steps == [1, 4]


def test_nothing_is_measured_where_there_is_no_choice(clock, monkeypatch):
    taken, printed = clock(FAST), []

    def number(given, device):
        with threads.using_threads(given, device, lambda: taken.step, report=printed.append):
            return torch.get_num_threads()

    assert number(2, "cpu") == 2
    assert printed == ["Threads: 2 (--threads)"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert number(None, "cuda") == number(3, None) == 4
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert number(None, "cpu") == 4
    monkeypatch.delenv("WORLD_SIZE")
    torch.set_num_threads(1)
    assert number(None, "cpu") == 1
    assert (len(printed), taken.steps) == (1, [])


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", ""])
def test_other_numbers_are_refused(refused, tiny, tmp_path, text):
    trained = tmp_path / "trained"
    trained.mkdir()
    (trained / "config.json").touch()
    for words in (("train", "median", tiny, "--out", tmp_path / "run"),
                  ("sweep", "median", tiny, "--out", tmp_path / "runs"),
                  ("evaluate", trained), ("predict", trained, "--smiles", "C")):  # fmt: skip
        message = f"--threads is {text!r}, expected auto or a number of 1 or more"
        refused((*words, "--threads", text), message)
    assert list(tmp_path.iterdir()) == [trained]


def test_a_resumed_run_has_the_threads_it_was_started_with(
    equipool, tiny, tmp_path, measured, stop_at
):
    """They can change the rounding, so another choice would give another run."""
    out, steps = tmp_path / "run", measured(SLOW)
    stop_at(7)
    stopped = equipool("train", "median", tiny, "--out", out, status=3)
    assert "Threads: 1 (10 ms" in stopped.output
    assert len(steps) == 1
    measured(FAST)
    done = equipool("train", "median", "--out", out, "--resume", "--device", "cpu")
    assert "Threads: 1 (as the run was started)" in done.output
    assert len(steps) == 1
    record = read_record(out / "record.json")
    assert [part["hardware"]["threads"] for part in record.ran_on] == [1, 1]
    assert "threads" not in str(record.config)
    measured(FAST)
    assert "Threads: 4 (10 ms" in equipool("evaluate", out, "--device", "cpu").output


def test_a_sweep_measures_each_new_run(equipool, tiny, tmp_path, measured, stop_at):
    measured(SLOW)
    flags = tiny | {"--seed": "0,1", "--aggregation": "sum", "--together": "2", "--out": tmp_path}
    stop_at(7)
    equipool("sweep", "median", flags, status=3)
    measured(FAST)
    equipool("sweep", "median", flags | {"--seed": "0,1,2"})
    for seed, number in ((0, 1), (1, 1), (2, 4)):
        record = read_record(tmp_path / f"sum-embedding-4-seed-{seed}" / "record.json")
        assert record.hardware["threads"] == number


def test_predictions_are_measured_and_their_table_stays_clean(equipool, tmp_path, measured):
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    molecule_table.write_table(tmp_path / "table.csv")
    flags = molecule_table.flags_for(tmp_path / "table.csv")
    flags |= {"--out": tmp_path / "run", "--data-dir": tmp_path / "data", "--threads": "1"}
    equipool("train", "molecules", flags)
    measured(SLOW)
    done = equipool("predict", tmp_path / "run", "--smiles", "CCO", "--device", "cpu")
    assert "Threads: 1 (10 ms" in done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_a_real_training_step_can_be_measured(equipool, tiny, tmp_path):
    done = equipool("train", "median", tiny, "--out", tmp_path / "run")
    assert " ms per step with 4)" in done.output
