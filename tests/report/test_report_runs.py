"""Runs read back from directories and records."""

import re

import pytest

from commands import call
from equipool.report import read_runs, summarize
from run_records import log_point as point
from run_records import record, write_folder, write_records


def test_a_directory_and_its_record_are_one_run(tmp_path):
    made = record([2.0, 1.0], "equilibrium")
    write_folder(tmp_path / "run", made, [point(10), point(20)])
    found = read_runs([tmp_path / "run", tmp_path / "run" / "record.json", tmp_path / "run"])
    assert [(run.name, run.num_parameters) for run in found] == [("run", 1234)]
    assert [entry["step"] for entry in found[0].points] == [10, 20]


def test_an_interrupted_run_is_read_from_its_log(tmp_path):
    made = record([2.0, 1.5, 1.0], "equilibrium")
    made.curve.pop()
    write_folder(tmp_path / "run", made, [point(10), point(20), point(25)], record=False)
    (run,) = read_runs([tmp_path])
    assert (run.complete, run.steps, run.planned_steps) == (False, 25, 30)
    assert (len(run.ran_on), run.best["step"], run.value(run.best)) == (1, 20, 1.5)
    assert (run.skipped, run.spikes, run.training_seconds) == (2, 1, 25.0)
    assert [piece["hardware"] for piece in run.ran_on] == [made.hardware]
    assert run.log_curve("loss") == [(10, 10.0, 0.1), (20, 20.0, 0.05), (25, 25.0, 0.04)]
    assert run.num_parameters is None


def test_runs_that_were_never_evaluated_are_read_and_not_confused(tmp_path):
    for name, steps in (("a", [10]), ("b", [10, 15])):
        made = record([1.0, 1.0])
        made.curve.clear()
        write_folder(tmp_path / name, made, [point(step) for step in steps], record=False)
    first, second = read_runs([tmp_path, tmp_path / "a"])
    assert (first.best, first.steps, second.steps) == (None, 10, 15)


@pytest.mark.parametrize("content", ["[1]", "{}", "no", '{"format": 1}'])
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "a.json"))):
        read_runs([tmp_path])


def test_an_error_names_directories_further_down(tmp_path):
    for run in ("a/1", "a/2", "b/steps/1"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "config.json").write_text("{}")
        (tmp_path / run / "record.json").write_text("{}")
    for records in ("c", "b/capacity"):
        (tmp_path / records).mkdir()
        (tmp_path / records / "1.json").write_text("{}")
    folders = ", ".join(str(tmp_path / name) for name in ("a", "b/capacity", "b/steps", "c"))
    with pytest.raises(ValueError, match=re.escape(folders) + "$"):
        read_runs([tmp_path])


def test_the_command_lists_what_it_does_not_read(tmp_path, drawn):
    write_records(tmp_path, record([1.0], "sum"))
    write_folder(tmp_path / "own", record([2.0], "sum"), [])
    (tmp_path / "own" / "notes").mkdir()  # belongs to a run that is read
    (tmp_path / "own" / "notes" / "notes.json").write_text("{}")
    (tmp_path / "sweep" / "run").mkdir(parents=True)
    (tmp_path / "sweep" / "run" / "config.json").write_text("{}")
    page = ("--out", tmp_path / "page.html")
    output = call("report", tmp_path, *page).output.replace("\n", "")
    assert str(tmp_path / "sweep") in output
    assert "notes" not in output
    assert "sweep" not in call("report", tmp_path / "0.json", *page).output


def test_a_damaged_line_of_a_log_is_reported_and_left_out(tmp_path, drawn):
    write_folder(tmp_path / "run", record([1.0], "sum"), [point(10), point(20)])
    log = tmp_path / "run" / "log.jsonl"
    lines = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([lines[0], b"\xff" + lines[1], *lines[2:]]))
    done = call("report", tmp_path, "--out", tmp_path / "page.html")
    assert f"Warning: line 2 of {log} is damaged" in done.stderr
    (run,) = read_runs([tmp_path], warn=lambda text: None)
    assert [entry["step"] for entry in run.points] == [20]


def test_nothing_to_report_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="contains no run"):
        read_runs([tmp_path])
    write_folder(tmp_path / "run", record([1.0]), [], record=False)
    (tmp_path / "run" / "log.jsonl").unlink()
    with pytest.raises(ValueError, match="nothing to report"):
        read_runs([tmp_path])


def test_tasks_are_not_mixed_and_must_be_known(tmp_path):
    files = write_records(tmp_path, record([1.0]), record([1.0], task="mode"))
    with pytest.raises(ValueError, match="median, mode"):
        read_runs(files)
    with pytest.raises(ValueError, match="'mode', expected one of"):
        summarize(read_runs(files[1:]))
