"""What a step costs that has the device to itself."""

from dataclasses import replace

import pytest
from records import record, write_records

from equipool.report import read_runs
from equipool.report.alone import seconds_alone, timed, untimed


def written(folder, *records):
    folder.mkdir()
    return read_runs(write_records(folder, *records))


def clock(made, *seconds):
    """The record with these seconds of training at its evaluations."""
    curve = [
        entry | {"training_seconds": time} for entry, time in zip(made.curve, seconds, strict=True)
    ]
    return replace(made, curve=curve, training_seconds=seconds[-1])


def with_field(made, **fields):
    config = made.config | {"fields": made.config["fields"] | fields}
    return replace(made, config=config)


@pytest.fixture
def runs(tmp_path):
    """Of two methods; an evaluation every 10 steps, and 10 seconds between them."""
    return written(tmp_path / "runs", record([3.0, 2.0], "sum", seed=1), record([3.0, 1.0], "mean"))


def test_the_first_evaluation_is_the_start_of_the_clock(runs, tmp_path):
    """100 seconds to compile, then 2 and 4 for 10 steps each."""
    alone = written(tmp_path / "alone", clock(record([9.0, 9.0, 9.0], "sum"), 100, 102, 106))
    assert seconds_alone(runs[0], alone) == pytest.approx(0.3)


def test_a_run_that_was_evaluated_once_is_timed_from_its_begin(runs, tmp_path):
    alone = written(tmp_path / "alone", clock(record([9.0], "sum"), 4))
    assert seconds_alone(runs[0], alone) == pytest.approx(0.4)


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


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("fields", {"embedding": 16}),
        ("fields", {"batch_size": 1}),
        ("training", {"precision": "tf32"}),
    ],
)
def test_another_size_batch_or_precision_is_another_cost(runs, tmp_path, part, changed):
    made = record([9.0], "sum")
    config = made.config | {part: made.config[part] | changed}
    alone = written(tmp_path / "alone", replace(made, config=config))
    assert seconds_alone(runs[0], alone) is None


def test_the_weight_of_a_loss_costs_nothing(tmp_path):
    heavy, light = (with_field(record([1.0], "sum"), readout_aux_weight=w) for w in (1.0, 0.1))
    run = written(tmp_path / "runs", heavy)[0]
    assert seconds_alone(run, written(tmp_path / "alone", light)) == 1


def test_runs_that_shared_the_device_were_not_alone(runs, tmp_path):
    alone = written(tmp_path / "alone", record([9.0], "sum", together=3))
    with pytest.raises(ValueError, match="0 was trained together with others"):
        timed(runs, alone)
