import sys
import tomllib

import pytest
from typer.testing import CliRunner

from equipool import cli, extras
from equipool.bench import command, presets
from equipool.bench.cases import Case
from equipool.bench.paths import PATHS
from equipool.bench.precision import PRECISIONS
from equipool.bench.presets import Preset, Series
from equipool.bench.record import read_record
from equipool.bench.roofline import Rates
from equipool.bench.timing import Budget
from python_blocks import ROOT

TINY = Preset(
    "tiny",
    "for tests",
    "sets",
    tuple(Case(sets, 5, 4, 4, (6, 5, 3), 2) for sets in (2, 3)),
    (Series("pyg", ("float32",)), Series("torch", PRECISIONS), Series("sum", ("float32",))),
    budget=Budget(seconds=0.0, repeats=2, warmup=0),
)


@pytest.fixture
def bench(monkeypatch):
    """Calls `equipool bench` with a preset for tests, without measuring the machine's rates."""
    monkeypatch.setitem(presets.PRESETS, "tiny", TINY)
    monkeypatch.setattr(command, "measure_rates", lambda p, device: Rates(p, 1.0, 1.0, 1.0))
    return lambda *arguments: CliRunner().invoke(command.app, [*map(str, arguments)])


def test_a_run_prints_writes_and_draws(bench, tmp_path):
    file = tmp_path / "tiny.json"
    done = bench("--preset", "tiny", "--device", "cpu", "--precision", "float32", "--out", file,
                 "--commit", "abc")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "3 sets of about 5" in done.output
    record = read_record(file)
    assert len(record.rows) == 2 * 3 * 2
    assert {row.status for row in record.rows} == {"timed"}
    assert record.commit == "abc"
    assert record.command == "equipool bench --preset tiny --device cpu --precision float32"
    assert str(tmp_path) not in file.read_text()
    assert bench("plot", file, "--out", tmp_path).exit_code == 0
    assert (tmp_path / "performance-tiny.svg").exists()
    assert "torch float32" in bench("show", file).output


def test_a_run_that_is_cut_off_leaves_what_it_measured(bench, tmp_path, monkeypatch):
    measure = command.measure_items

    def cut_off(*arguments):
        for number, row in enumerate(measure(*arguments)):
            if number == 2:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(command, "measure_items", cut_off)
    file = tmp_path / "tiny.json"
    done = bench("--preset", "tiny", "--device", "cpu", "--path", "sum", "--out", file)
    assert done.exit_code != 0
    assert [row.path for row in read_record(file).rows] == ["sum", "sum"]


def test_what_could_not_be_timed_is_printed(bench):
    done = bench("--preset", "tiny", "--device", "cpu", "--path", "torch", "--precision", "tf32")
    assert done.exit_code == 0
    assert "not timed: torch tf32: unavailable: tf32 needs a CUDA device" in done.output


def test_wrong_numbers_fail_the_run(bench, monkeypatch):
    longer = Case(2, 5, 4, 4, (6, 5, 3), 3)
    right = PATHS["torch"]
    monkeypatch.setitem(
        PATHS, "torch", type(right)("torch", "", lambda c, b: right.build(longer, b), True)
    )
    done = bench("--preset", "tiny", "--device", "cpu", "--path", "torch", "--precision", "float32")
    assert done.exit_code == 1
    assert "disagrees" in done.output


def test_goals_that_are_missed_fail_the_command(bench, tmp_path):
    file = tmp_path / "tiny.json"
    bench("--preset", "tiny", "--device", "cpu", "--precision", "float32", "--out", file)
    assert bench("goals", file).exit_code == 0
    file.write_text(file.read_text().replace('"status": "timed"', '"status": "disagrees"', 1))
    assert bench("goals", file).exit_code == 1


def test_records_of_other_commands_are_left_out(bench, tmp_path):
    """Of all that are committed, as the page about benchmarks has it."""
    files = sorted((ROOT / "benchmarks" / "records").glob("*.json"))
    done = bench("goals", *files)
    assert "Left out" in done.output
    assert "cpu-gradients.json is the record of `equipool bench gradients" in done.output
    alone = bench("goals", *(file for file in files if "gradients" not in file.name
                             and "stability" not in file.name))  # fmt: skip
    assert "Left out" not in alone.output
    assert done.exit_code == alone.exit_code
    assert done.stdout == alone.stdout


def test_a_record_of_timings_is_needed(bench):
    done = bench("show", ROOT / "benchmarks" / "records" / "cpu-stability.json")
    assert done.exit_code == 2
    assert "expected a record of `equipool bench`" in done.output


@pytest.mark.parametrize(
    "arguments",
    [("--preset", "slow"), ("--path", "max"), ("--precision", "int8"), ("--mode", "sideways"),
     ("--device", "abacus")],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_those_that_exist(bench, arguments):
    done = bench("--preset", "tiny", *arguments)
    assert done.exit_code == 2
    assert "expected" in done.output


def test_a_missing_extra_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "typer" else object())
    assert cli.main() == 1
    assert 'needs typer. Run: pip install "equipool[cli]"' in capsys.readouterr().err


def test_the_command_has_the_group(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["equipool", "bench", "--help"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "--preset" in capsys.readouterr().out


def test_the_script_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"equipool": "equipool.cli:main"}
