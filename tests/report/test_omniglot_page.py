"""The page about counting characters: made from the records, with commands that make them again."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from counting_records import made
from page_script import page_text, pictures_of
from records import written
from typer.testing import CliRunner

from command_lines import check_flags, command_lines
from equipool.cli import make_app, sweep
from equipool.report import read_runs
from equipool.report.alone import untimed
from equipool.report.recorded import recorded
from equipool.training.artifacts import Examination
from equipool.training.config import FREE, chosen_config

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = page_text("omniglot")
COMMANDS = command_lines(PAGE)
RECORDS = sorted((ROOT / "records" / "omniglot").glob("*.json"))
needs_records = pytest.mark.skipif(not RECORDS, reason="there are no records of the task")
needs_page = pytest.mark.skipif(not PAGE, reason="there is no page of the task")


@needs_page
def test_the_page_is_brought_up_to_date(script, runs, alone):
    found = script.blocks(runs, alone, runs, runs, runs, Examination())
    new = script.refresh(PAGE, found)
    for content in found.values():
        assert f"-->\n\n{content}\n\n<!-- end -->" in new
    assert "| sum | 0.001 | 2 | 50.0 ± 17.7 % |" in new
    assert " | 15 | 1,234 |" in new  # seconds of a run alone
    assert script.refresh(new, found) == new
    assert re.sub(r"\|.*\||3 runs on .*", "", new).split() == (
        re.sub(r"\|.*\||\d+ runs on .*", "", PAGE).split()
    )


@pytest.fixture
def folders(script, tmp_path, monkeypatch):
    """The script reads records from here, a run and one alone, and writes to here."""
    for name in ("RECORDS", "FIGURES"):
        monkeypatch.setattr(script, name, tmp_path)
    monkeypatch.setattr(script, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text("<!-- generated: results -->\n<!-- end -->\n")
    written(tmp_path / "omniglot", made([0.25, 0.5], seconds=9.0))
    written(tmp_path / "omniglot-speed", made([0.1, 0.1], seed=3, seconds=2.0))
    return tmp_path


def test_all_is_made_from_the_folders(script, folders, monkeypatch):
    monkeypatch.setattr("sys.argv", ["omniglot.py"])
    given = []
    monkeypatch.setattr(script, "draw_curves", lambda groups, file: given.append(groups))
    script.main()
    page = (folders / "page.md").read_text()
    assert "| sum | 0.001 | 1 | 50.0 % | 25.0 % | 50.0 % | 25.0 % | 50.0 % |" in page
    assert given[0][0].runs[0].training_seconds == 40


def test_nothing_is_drawn_where_the_tables_cannot_be_made(script, folders, monkeypatch):
    shutil.rmtree(folders / "omniglot-speed")
    shutil.copytree(ROOT / "records" / "omniglot-examination", folders / "omniglot-examination")
    monkeypatch.setattr("sys.argv", ["omniglot.py", "--data-dir", str(folders)])
    drawn = []
    for name in ("draw_curves", "draw_sets", "draw_examination"):
        monkeypatch.setattr(script, name, lambda *some: drawn.append(some))
    with pytest.raises(ValueError, match="no run alone has the settings of 0"):
        script.main()
    assert drawn == []


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
            found.extend(one.plan for one in plan_runs(*arguments))
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
    @pytest.fixture
    def runs(self):
        return read_runs(RECORDS)

    @pytest.fixture
    def alone(self):
        return recorded(ROOT / "records" / "omniglot-speed")

    def test_the_page_is_that_of_the_records(self, script):
        assert script.refresh(PAGE, script.blocks(**script.read())) == PAGE

    def test_all_seconds_are_of_runs_alone(self, script, runs, alone):
        """Without the start of a short run: times 32, it would be most of the seconds."""
        assert untimed(runs, [run for run in alone if script.steps_before(run)]) == []

    def test_the_examination_is_of_a_run_of_the_records(self, script):
        """Accuracies on test characters, which both have; a set in a thousand may be told
        otherwise in TF32, in batches of another size."""
        by_number = script.read()["examined"].tables[0]
        (test,) = [row for row in by_number.rows if row[0] == "test"]
        record = json.loads((ROOT / "records/omniglot/equilibrium-seed-0.json").read_text())
        found = [record["metrics"][f"test_accuracy_{k}"] for k in range(1, 11)]
        found.append(record["metrics"]["test_accuracy"])
        assert list(test[1:]) == pytest.approx(found, abs=0.003)

    def test_the_pictures_of_the_page_are_there(self):
        shown, drawn = pictures_of("omniglot")
        assert shown == drawn


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_no_page_is_unfinished(page):
    assert re.findall(r"[A-Z]+-SENTENCE|RAN-ON", page.read_text(encoding="utf-8")) == []
