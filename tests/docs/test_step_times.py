"""What a step costs that has the device to itself."""

from dataclasses import replace

import pytest
from records import HARDWARE, record, written

from equipool.report.alone import check_timed, seconds_alone, timed, untimed


def clock(made, *seconds):
    """The record with these seconds of training at its evaluations."""
    curve = [
        entry | {"training_seconds": time} for entry, time in zip(made.curve, seconds, strict=True)
    ]
    return replace(made, curve=curve, training_seconds=seconds[-1])


def with_settings(made, part, **changed):
    return replace(made, config=made.config | {part: made.config[part] | changed})


@pytest.fixture
def runs(tmp_path):
    """Of two methods; an evaluation every 10 steps, and 10 seconds between them."""
    return written(tmp_path / "runs", record([3.0, 2.0], "sum", seed=1), record([3.0, 1.0], "mean"))


def test_the_first_evaluation_is_the_start_of_the_clock(runs, tmp_path):
    """100 seconds to compile, then 4 and 5 for 10 steps each."""
    alone = written(tmp_path / "alone", clock(record([9.0, 9.0, 9.0], "sum"), 100, 104, 109))
    assert seconds_alone(runs[0], alone) == pytest.approx(0.45)


@pytest.mark.parametrize("seconds", [(100, 104, 109.5), (100, 105.5, 109.5)])
def test_a_run_that_became_slower_or_faster_was_not_alone(runs, tmp_path, seconds):
    alone = written(tmp_path / "alone", clock(record([9.0, 9.0, 9.0], "sum"), *seconds))
    with pytest.raises(ValueError, match=r"0 took 0\.4 to 0\.55 seconds a step"):
        seconds_alone(runs[0], alone)


def test_steadiness_is_that_of_steps(runs, tmp_path):
    """20 steps may take twice as long as 10."""
    made = clock(record([9.0, 9.0, 9.0], "sum"), 100, 104, 112)
    made.curve[-1]["step"] = 40
    assert seconds_alone(runs[0], written(tmp_path / "alone", made)) == pytest.approx(0.4)


def test_a_run_that_was_evaluated_once_is_timed_from_its_begin(runs, tmp_path):
    """All its steps are, not those to the evaluation alone."""
    made = replace(clock(record([9.0], "sum"), 4), steps=20, training_seconds=10)
    alone = written(tmp_path / "alone", made)
    assert seconds_alone(runs[0], alone) == pytest.approx(0.5)


def test_of_several_runs_the_mean(runs, tmp_path):
    alone = written(
        tmp_path / "alone",
        clock(record([9.0], "sum", seed=5), 4),
        clock(record([9.0], "sum", seed=6), 2),
    )
    assert seconds_alone(runs[0], alone) == pytest.approx(0.3)


def test_runs_get_the_seconds_of_their_own_settings(runs, tmp_path):
    alone = written(tmp_path / "alone", clock(record([9.0], "sum"), 4))
    first, other = timed(runs, alone)
    assert first.training_seconds == pytest.approx(8)
    assert [entry["training_seconds"] for entry in first.curve] == pytest.approx([4, 8])
    assert [entry["metrics"] for entry in first.curve] == [e["metrics"] for e in runs[0].curve]
    assert other == runs[1]
    assert untimed(runs, alone) == [runs[1].name]


def test_steps_after_the_last_evaluation_take_time_too(runs, tmp_path):
    alone = written(tmp_path / "alone", clock(record([9.0], "sum"), 4))
    (found,) = timed([replace(runs[0], steps=25)], alone)
    assert found.training_seconds == pytest.approx(10)


def test_runs_without_a_run_alone_are_named(runs, tmp_path):
    alone = written(tmp_path / "alone", record([9.0], "sum"))
    check_timed(runs[:1], alone)
    with pytest.raises(ValueError, match=r"no run alone has the settings of 1$"):
        check_timed(runs, alone)


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("fields", {"embedding": 16}),
        ("fields", {"batch_size": 1}),
        ("training", {"precision": "tf32"}),
        ("training", {"capture": False}),
        ("training", {"compile": True}),
        ("training", {"ema_decay": 0.5}),
        ("training", {"aux_weight": 0.0}),
    ],
)
def test_other_settings_are_another_cost(runs, tmp_path, part, changed):
    alone = written(tmp_path / "alone", with_settings(record([9.0], "sum"), part, **changed))
    assert seconds_alone(runs[0], alone) is None


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("training", {"capture": True}),  # as None, where that is possible
        ("training", {"aux_weight": 1.0}),
        ("training", {"learning_rate": 1.0}),
        ("fields", {"readout_aux_weight": 0.1}),
        ("fields", {"local_aux_weight": 0.1}),
        ("fields", {"later": None}),
    ],
)
def test_settings_that_cost_nothing(runs, tmp_path, part, changed):
    alone = written(tmp_path / "alone", with_settings(record([9.0], "sum"), part, **changed))
    assert seconds_alone(runs[0], alone) == 1


def test_the_decay_of_an_average_costs_nothing(tmp_path):
    some = (with_settings(record([9.0]), "training", ema_decay=decay) for decay in (0.5, 0.9))
    assert untimed(*(written(tmp_path / str(i), one) for i, one in enumerate(some))) == []


def test_a_record_of_before_a_setting_was_there(runs, tmp_path):
    made = record([9.0], "sum")
    for name in ("capture", "compile", "ema_decay"):
        del made.config["training"][name]
    assert seconds_alone(runs[0], written(tmp_path / "alone", made)) == 1


def test_another_task_is_another_cost(runs, tmp_path):
    alone = written(tmp_path / "alone", record([9.0], "sum"))
    assert seconds_alone(runs[0], [replace(alone[0], task="other")]) is None


def test_another_device_is_another_cost(runs, tmp_path):
    """A processor is not asked for beside a GPU."""
    first, second = (HARDWARE | {"gpu": "Z1", "cpu": cpu} for cpu in ("abacus", "quipu"))
    fast = written(tmp_path / "fast", record([9.0], "sum", hardware=first))
    same = written(tmp_path / "same", record([9.0], "sum", hardware=second))
    other = written(tmp_path / "other", record([9.0], "sum", hardware=HARDWARE | {"cpu": "quipu"}))
    assert seconds_alone(runs[0], fast) is None
    assert seconds_alone(runs[0], other) is None
    assert seconds_alone(fast[0], same) == 1


def test_runs_that_shared_the_device_were_not_alone(runs, tmp_path):
    alone = written(tmp_path / "alone", record([9.0], "sum", together=3))
    with pytest.raises(ValueError, match="0 was trained together with others"):
        timed(runs, alone)


def test_a_piece_that_shared_the_device_is_enough(runs, tmp_path):
    one = record([9.0], "sum")
    pieces = [
        {"hardware": one.hardware, "versions": one.versions, "together": number}
        for number in (1, 3)
    ]
    alone = written(tmp_path / "alone", replace(one, ran_on=pieces))
    with pytest.raises(ValueError, match="0 was trained together with others"):
        timed(runs, alone)
