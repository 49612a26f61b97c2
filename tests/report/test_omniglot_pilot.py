"""The table of the runs that settings were chosen by, on the page about counting characters."""

from dataclasses import replace

from page_script import load_script, rows
from records import record, write_folder

from equipool.experiments.registry import OmniglotTask
from equipool.report import read_runs
from equipool.training import TrainingConfig
from equipool.training.config import chosen_config

script = load_script("omniglot")


def tried(values, aggregation, rate, **fields):
    """Validation accuracies; a tenth less on test characters."""
    made = record(values, aggregation)
    for entry, value in zip(made.curve, values, strict=True):
        entry["metrics"] = {
            "validation_accuracy": value, "test_accuracy": value - 0.1, "train_accuracy": 0.75
        }  # fmt: skip
    config = chosen_config(
        OmniglotTask(aggregation, **fields), TrainingConfig(steps=100, learning_rate=rate)
    )
    return replace(made, task="omniglot", config=config)


def test_the_methods_are_ordered_by_their_best_and_rates_have_a_column(tmp_path):
    for name, made in {
        "a": tried([0.9, 0.3], "sum", 1e-3),
        "b": tried([0.1, 0.2], "sum", 3e-4),
        "c": tried([0.2], "equilibrium", 1e-3),
        "d": tried([0.4, 0.5], "equilibrium", 3e-4),
        "e": tried(
            [0.25], "equilibrium", 1e-3, solver={"name": "restrained-nesterov", "max_step": 2.0}
        ),
    }.items():
        write_folder(tmp_path / name, made, [], record=False)  # not at its end
    found = rows(script.settings(read_runs([tmp_path])))
    assert [tuple(row.values()) for row in found] == [
        ("equilibrium", "0.0003", "1", "20", "50.0 %", "40.0 %", "75.0 %"),
        ("equilibrium, solver max step 2.0", "0.001", "1", "10", "25.0 %", "15.0 %", "75.0 %"),
        ("equilibrium", "0.001", "1", "10", "20.0 %", "10.0 %", "75.0 %"),
        ("sum", "0.001", "1", "20", "30.0 %", "20.0 %", "75.0 %"),
        ("sum", "0.0003", "1", "20", "20.0 %", "10.0 %", "75.0 %"),
    ]
