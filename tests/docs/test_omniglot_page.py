"""The page about counting characters: made from the records, with commands that make them again."""

import json
import shlex
from pathlib import Path

import pytest
from figure_scripts import check_page, load_script, page_text, use_folder
from typer.testing import CliRunner

from command_lines import check_flags, command_lines
from equipool.cli import make_app, sweep
from equipool.report import read_runs
from equipool.training.config import FREE, chosen_config
from run_records import counting, written

script = load_script("omniglot")
ROOT = Path(__file__).parents[2]
PAGE = page_text("omniglot")
COMMANDS = command_lines(PAGE)
RECORDS = sorted((ROOT / "records" / "omniglot").glob("*.json"))
needs_records = pytest.mark.skipif(not RECORDS, reason="there are no records of the task")
needs_page = pytest.mark.skipif(not PAGE, reason="there is no page of the task")


@pytest.fixture
def records(tmp_path, monkeypatch):
    """The script reads records from here, a run and a solo run."""
    folder = use_folder(script, tmp_path, monkeypatch, "results")
    written(folder / "omniglot", counting([0.25, 0.5], [0.25, 0.5], seconds=9.0))
    written(folder / "omniglot-speed", counting([0.1] * 2, [0.1] * 2, seed=3, seconds=2.0))
    return folder


def test_the_script_reads_records_and_writes_the_page(records, monkeypatch):
    monkeypatch.setattr("sys.argv", ["omniglot.py"])
    given = []
    monkeypatch.setattr(script, "draw_curves", lambda groups, file: given.append(groups))
    script.main()
    row = "| sum | 0.001 | 1 | 50.0 % | 25.0 % | 50.0 % | 25.0 % | 50.0 % |"
    assert row in script.PAGE.read_text()
    assert given[0][0].runs[0].training_seconds == 40


@needs_page
class TestCommands:
    @pytest.mark.parametrize("line", COMMANDS)
    def test_have_the_flags_that_are_shown(self, line):
        check_flags(line)

    @pytest.fixture
    def planned(self, monkeypatch, tmp_path):
        """Config and directory of each run that the sweeps of the experiment would train."""
        monkeypatch.chdir(tmp_path)
        plan_runs, found = sweep.plan_runs, []

        def plan_none(*arguments):
            found.extend(plan_runs(*arguments))
            return []

        monkeypatch.setattr(sweep, "plan_runs", plan_none)
        for line in COMMANDS:
            if line.startswith("equipool sweep") and "--preset" not in line:
                done = CliRunner().invoke(make_app(), shlex.split(line)[1:])
                assert done.exit_code == 0, done.output
        return {str(plan.out): chosen_config(plan.task, plan.config) for plan in found}

    def test_train_every_method_alike(self, planned):
        made = [(c["fields"]["aggregation"], c["fields"]["seed"]) for c in planned.values()]
        methods = ("sum", "attention", "pna", "set-transformer", "equilibrium")
        assert sorted(made) == sorted((method, seed) for method in methods for seed in range(3))
        seen = {c["fields"]["batch_size"] * c["training"]["steps"] for c in planned.values()}
        assert seen == {2_048_000}
        alike = [without_choices(config) for config in planned.values()]
        assert all(config == alike[0] for config in alike)

    def test_evaluate_a_run_that_they_train(self, planned):
        (words,) = [shlex.split(line) for line in COMMANDS if " evaluate " in line]
        assert words[2] in planned

    @needs_records
    def test_are_those_of_the_records(self, planned):
        wanted = [comparable(config) for config in planned.values()]
        found = [comparable(run.config) for run in read_runs(RECORDS)]
        assert len(found) == len(wanted)
        assert all(config in wanted for config in found)


def without_choices(config):
    """A config without what the experiment compares, or chooses for each method."""
    fields = {k: v for k, v in config["fields"].items() if k not in ("aggregation", "seed")}
    return fields, {k: v for k, v in config["training"].items() if k != "learning_rate"}


def comparable(config):
    """A config without what changes no number."""
    return config["fields"], {k: v for k, v in config["training"].items() if k not in FREE}


@needs_page
@needs_records
class TestRecords:
    def test_the_numbers_of_the_page_are_those_of_the_records(self):
        check_page("omniglot", script.tables(**script.read()))

    def test_all_times_are_of_solo_runs(self):
        """Without the start of a short run: times 32, it would be most of the time."""
        solo = script.read_folder(ROOT / "records" / "omniglot-speed")
        warm = [run for run in solo if script.steps_before(run)]
        script.check_solo_runs(read_runs(RECORDS), warm)

    def test_the_examination_is_of_a_run_of_the_records(self):
        """Both have accuracies on test characters; in TF32 and in batches of another size, a set in
        a thousand may be counted differently."""
        by_number = script.read()["examined"].tables[0]
        (test,) = [row for row in by_number.rows if row[0] == "test"]
        record = json.loads((ROOT / "records/omniglot/equilibrium-seed-0.json").read_text())
        found = [record["metrics"][f"test_accuracy_{k}"] for k in range(1, 11)]
        found.append(record["metrics"]["test_accuracy"])
        assert list(test[1:]) == pytest.approx(found, abs=0.003)
