"""Training times of solo runs."""

from dataclasses import replace

import pytest
from figure_scripts import load_script

from run_records import HARDWARE, changed, record, written

times = load_script("step_times")


def with_times(made, *seconds):
    """The record with these training times at its evaluations."""
    curve = [
        entry | {"training_seconds": time} for entry, time in zip(made.curve, seconds, strict=True)
    ]
    return replace(made, curve=curve, training_seconds=seconds[-1])


@pytest.fixture
def runs(tmp_path):
    """Of two methods; an evaluation every 10 steps, and 10 seconds between them."""
    return written(tmp_path / "runs", record([3.0, 2.0], "sum", seed=1), record([3.0, 1.0], "mean"))


@pytest.fixture
def seconds(runs, tmp_path):
    """Seconds per step of the sum, by these solo runs."""
    return lambda *solo: times.solo_seconds(runs[0], written(tmp_path / "solo", *solo))


def test_time_before_the_first_evaluation_does_not_count(seconds):
    """100 seconds to compile, then 4 and 5 for 10 steps each."""
    assert seconds(with_times(record([9.0] * 3, "sum"), 100, 104, 109)) == pytest.approx(0.45)


def test_a_run_with_one_evaluation_is_timed_as_a_whole_and_several_are_averaged(seconds):
    first, second = (with_times(record([9.0], "sum", seed=seed), 4) for seed in (5, 6))
    second = replace(second, steps=20, training_seconds=10)
    for name in ("capture", "compile", "ema_decay"):
        del first.config["training"][name]  # an older record lacks settings
    assert seconds(first, second) == pytest.approx((0.4 + 0.5) / 2)


@pytest.mark.parametrize("clock", [(100, 104, 113), (100, 105.5, 113.5)])
def test_an_unsteady_run_was_not_solo(seconds, clock):
    """20 steps may take twice as long as 10, and no more than 1.3 times per step."""
    made = with_times(record([9.0] * 3, "sum"), *clock)
    made.curve[-1]["step"] = 40
    if clock[1] == 104:
        assert seconds(made) == pytest.approx(13 / 30)
    else:
        with pytest.raises(ValueError, match=r"0\.4 to 0\.55 seconds per step"):
            seconds(made)


def test_runs_get_the_times_of_their_own_settings(runs, tmp_path):
    solo = written(tmp_path / "solo", with_times(record([9.0], "sum"), 4))
    longer = replace(runs[0], steps=25)  # five steps after the last evaluation
    first, other = times.with_solo_times([longer, runs[1]], solo)
    assert first.training_seconds == pytest.approx(10)
    assert [entry["training_seconds"] for entry in first.curve] == pytest.approx([4, 8])
    assert [entry["metrics"] for entry in first.curve] == [e["metrics"] for e in runs[0].curve]
    assert other == runs[1]
    assert times.without_solo_run(runs, solo) == [runs[1].name]
    times.check_solo_runs(runs[:1], solo)
    with pytest.raises(ValueError, match=rf"the settings of {runs[1].name}$"):
        times.check_solo_runs(runs, solo)


@pytest.mark.parametrize(
    ("training", "fields", "same"),
    [
        ({}, {"embedding": 16}, False),
        ({}, {"batch_size": 1}, False),
        ({"precision": "tf32"}, {}, False),
        ({"capture": False}, {}, False),
        ({"compile": True}, {}, False),
        ({"ema_decay": 0.5}, {}, False),
        ({"aux_weight": 0.0}, {}, False),
        ({"capture": True}, {}, True),  # as None: if possible
        ({"aux_weight": 1.0}, {}, True),
        ({"learning_rate": 1.0}, {}, True),
        ({}, {"readout_aux_weight": 0.1}, True),
        ({}, {"local_aux_weight": 0.1}, True),
        ({}, {"later": None}, True),
    ],
)
def test_which_settings_cost_something(seconds, training, fields, same):
    assert (seconds(changed(record([9.0], "sum"), training, **fields)) == 1) is same


def test_the_device_and_the_task_matter(runs, tmp_path):
    """The processor does not, if there is a GPU."""
    with_gpu = [HARDWARE | {"gpu": "Z1", "cpu": cpu} for cpu in ("abacus", "quipu")]
    fast, same, other = (
        written(tmp_path / str(i), record([9.0], "sum", hardware=hardware))
        for i, hardware in enumerate((*with_gpu, HARDWARE | {"cpu": "quipu"}))
    )
    assert times.solo_seconds(runs[0], fast) is None
    assert times.solo_seconds(runs[0], other) is None
    assert times.solo_seconds(fast[0], same) == 1
    assert times.solo_seconds(runs[0], [replace(runs[0], task="other")]) is None


@pytest.mark.parametrize("shared", [[3], [1, 3]])
def test_runs_that_shared_the_device_are_refused(seconds, shared):
    one = record([9.0], "sum")
    pieces = [{"hardware": HARDWARE, "versions": {}, "together": number} for number in shared]
    with pytest.raises(ValueError, match="shared the device"):
        seconds(replace(one, ran_on=pieces))
