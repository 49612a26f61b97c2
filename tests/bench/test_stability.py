"""benchmarks/stability.py."""

from dataclasses import replace

import pytest
import stability
import torch
from stability import HARD, OPTIONS, SHORT_LIST, TRIALS, Plan, Sizes, measure, read_stability
from typer.testing import CliRunner

from equipool.training import count_spikes
from python_blocks import ROOT

CPU = torch.device("cpu")
NAMES = [option.name for option in OPTIONS]
TINY = Plan(seeds=2, steps=12, sizes=Sizes(set_size=5, batch_size=4, evaluation_sets=8))


@pytest.mark.parametrize("option", OPTIONS, ids=NAMES)
def test_every_option_makes_a_layer_and_a_recipe(option):
    layer = option.task(HARD, TINY.sizes, seed=0).network().aggregation
    assert layer(torch.rand(2, 5, 1)).shape == (2, stability.CHANNELS)
    biases = torch.cat([linear.bias for linear in layer.potential.linears])
    assert bool(biases.any()) == (option.bias_std > 0)
    config = option.config(HARD, 100)
    assert config.learning_rate == HARD.learning_rate
    assert config.warmup_steps == (20 if option.warm_up else 0)


def test_every_seed_is_trained_and_counted():
    seen = []
    found = measure(OPTIONS[0], HARD, TINY, CPU, lambda: seen.append(1))
    assert len(seen) == TINY.seeds
    for values in (found.spikes, found.not_finite, found.errors, found.learning_rates):
        assert len(values) == TINY.seeds
    assert found.errors[0] != found.errors[1]
    assert found.learning_rates[0] == pytest.approx(0.125, abs=0.1)
    assert measure(OPTIONS[0], HARD, TINY, CPU) == found


def test_counts_are_taken_from_the_losses(monkeypatch):
    losses = torch.ones(400)
    losses[[150, 300]] = 11.0
    losses[200] = torch.nan
    fit = stability.fit

    def spiking(task, config, device):
        fitted = fit(task, config, device)
        return replace(fitted, history=fitted.history | {"loss": losses})

    monkeypatch.setattr(stability, "fit", spiking)
    found = measure(OPTIONS[0], HARD, TINY, CPU)
    assert found.spikes == [int(count_spikes(losses))] * 2 == [2, 2]
    assert found.not_finite == [1, 1]


class TestCommand:
    @pytest.fixture
    def call(self, monkeypatch):
        monkeypatch.setattr(stability, "SIZES", TINY.sizes)
        arguments = ("--device", "cpu", "--seeds", "2", "--steps", "12", "--commit", "abc",
                     "--option", "plain recipe")  # fmt: skip
        return lambda *more: CliRunner().invoke(stability.app, [*arguments, *map(str, more)])

    def test_measures_prints_and_writes(self, call, tmp_path):
        file = tmp_path / "record.json"
        done = call("--out", file)
        assert done.exit_code == 0, done.output
        record = read_stability(file)
        assert [row.setting for row in record.rows] == ["hard", "usual", "one output"]
        assert {len(row.errors) for row in record.rows} == {2}
        assert '--seeds 2 --steps 12 --option "plain recipe"' in record.command
        assert str(tmp_path) not in file.read_text()

    def test_resumes_an_interrupted_run(self, call, tmp_path, monkeypatch):
        file, measured = tmp_path / "record.json", []
        assert call("--out", file, "--setting", "usual").exit_code == 0
        monkeypatch.setattr(stability, "measure", lambda option, setting, plan, device, on_seed: (
            measured.append(setting.name) or outcome(setting.name, option.name)))  # fmt: skip
        assert call("--out", file).exit_code == 0
        assert measured == ["hard", "one output"]
        assert len(read_stability(file).rows) == 3

    def test_quick_compares_both_recipes_with_and_without_biases(self, tmp_path, monkeypatch):
        monkeypatch.setattr(stability, "measure", lambda option, setting, plan, device, on_seed: (
            outcome(setting.name, option.name)))  # fmt: skip
        file = tmp_path / "record.json"
        arguments = ["--quick", "--device", "cpu", "--out", str(file)]
        assert CliRunner().invoke(stability.app, arguments).exit_code == 0
        record = read_stability(file)
        assert {(row.option, row.setting) for row in record.rows} == {
            (name, "hard") for name in SHORT_LIST
        }
        assert record.command == "python benchmarks/stability.py --device cpu --quick"

    def test_does_not_resume_another_run(self, call, tmp_path):
        file = tmp_path / "record.json"
        assert call("--out", file, "--setting", "usual").exit_code == 0
        file.write_text(file.read_text().replace('"seeds": 2', '"seeds": 3'))
        done = call("--out", file)
        assert done.exit_code != 0
        assert "has seeds 3, expected 2" in str(done.exception)

    @pytest.mark.parametrize("argument", ["--option", "--setting"])
    def test_an_unknown_name_is_refused_with_those_that_exist(self, call, argument):
        done = call(argument, "nothing")
        assert done.exit_code == 2
        assert "expected one of" in " ".join(done.output.split())


def outcome(setting="hard", option="plain recipe", errors=(1e-3, None, 2e-3, 3e-3, 5e-3)):
    return stability.Outcome(
        setting, option, [0, 2, 0, 1, 0], [0, 7, 0, 0, 0], [0.1] * 5, list(errors), [0.125] * 5,
        [0.9] * 5,
    )  # fmt: skip


class TestRecord:
    def test_a_lost_seed_is_worse_than_any(self):
        assert stability.quartiles([3.0, None, 1.0, 2.0, 4.0]) == (2.0, 3.0, 4.0)
        assert stability.quartiles([3.0, None, None]) == (3.0, float("inf"), float("inf"))

    def test_a_row_sums_spikes_and_seeds(self):
        cells = dict(zip(stability.COLUMNS, stability.cells(outcome()), strict=True))
        assert (cells["spikes"], cells["seeds"], cells["not finite"]) == ("3", "2", "7")

    def test_is_read_as_it_was_written(self, tmp_path):
        record = stability.StabilityRecord(
            "c", "d", "e", {"torch": "1"}, {"cpu": "x"}, 5, 9, Sizes(), [outcome()]
        )
        record.write(tmp_path / "record.json")
        assert read_stability(tmp_path / "record.json") == record

    @pytest.mark.parametrize("name", ["cpu-stability", "cpu-stability-biases"])
    def test_the_recorded_runs_are_readable(self, name):
        record = read_stability(ROOT / "benchmarks" / "records" / f"{name}.json")
        assert record.seeds == 20
        assert {row.setting for row in record.rows} <= {trial.setting.name for trial in TRIALS}
