import subprocess
import sys
import tomllib
from dataclasses import replace

import plot
import pytest
from typer.testing import CliRunner

import equipool
from equipool import cli, extras
from equipool.bench import cases, command, measure
from equipool.bench.cases import PRECISIONS, Budget, Case, Preset, Series
from equipool.bench.paths import PATHS
from equipool.bench.record import Rates, read_record
from python_blocks import ROOT

TINY = Preset(
    "tiny",
    "sets",
    tuple(Case(sets, 5, 4, 4, (6, 5, 3), 2) for sets in (2, 3)),
    (Series("pyg", ("float32",)), Series("equipool", PRECISIONS), Series("sum", ("float32",))),
    budget=Budget(seconds=0.0, repeats=2, warmup=0),
)


@pytest.fixture
def bench(monkeypatch):
    """Calls `equipool bench` with a preset for tests, without measuring the machine's rates."""
    monkeypatch.setitem(cases.PRESETS, "tiny", TINY)
    monkeypatch.setattr(measure, "measure_rates", lambda p, device: Rates(p, 1.0, 1.0, 1.0))
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
    arguments = [str(file), "--out", str(tmp_path)]
    assert CliRunner().invoke(plot.app, arguments).exit_code == 0
    assert (tmp_path / "performance-tiny.svg").exists()
    assert "equipool float32" in bench("show", file).output


def test_a_run_that_is_cut_off_leaves_what_it_measured(bench, tmp_path, monkeypatch):
    original, measured = measure.measure, []

    def cut_off(item, *others):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(item)
        return original(item, *others)

    monkeypatch.setattr(measure, "measure", cut_off)
    file = tmp_path / "tiny.json"
    done = bench("--preset", "tiny", "--device", "cpu", "--path", "sum", "--out", file)
    assert done.exit_code != 0
    assert [row.path for row in read_record(file).rows] == ["sum", "sum"]


def test_paths_are_listed(bench):
    listed = [line.split()[0] for line in bench("paths").output.splitlines()]
    assert listed == list(PATHS)


def test_what_could_not_be_timed_is_printed(bench):
    done = bench("--preset", "tiny", "--device", "cpu", "--path", "equipool", "--precision", "tf32")
    assert done.exit_code == 0
    assert "not timed: equipool tf32: unavailable: tf32 needs a CUDA device" in done.output


def test_wrong_numbers_fail_the_run(bench, monkeypatch):
    longer = Case(2, 5, 4, 4, (6, 5, 3), 3)
    right = PATHS["equipool"]
    wrong = replace(right, build=lambda case: right.build(longer))
    monkeypatch.setitem(PATHS, "equipool", wrong)
    done = bench(
        "--preset", "tiny", "--device", "cpu", "--path", "equipool", "--precision", "float32"
    )
    assert done.exit_code == 1
    assert "disagrees: equipool in float32 is not timed" in " ".join(done.output.split())


def test_records_of_other_commands_are_skipped(bench):
    records = ROOT / "benchmarks" / "records"
    done = bench("show", records / "cpu-quick.json", records / "cpu-gradients.json")
    assert done.exit_code == 0
    assert "cpu-gradients.json is a record of `equipool bench gradients" in done.output
    done = bench("show", records / "cpu-stability.json")
    assert done.exit_code == 2
    assert "expected at least one record" in done.output


def test_an_unwritable_record_is_noticed_before_measuring(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "measure", None)
    (tmp_path / "file").touch()
    done = bench("--preset", "tiny", "--device", "cpu", "--out", tmp_path / "file" / "x.json")
    assert done.exit_code == 2
    assert "--out" in done.output


def test_help_names_the_presets_and_imports_no_torch(bench):
    assert set(command.PRESETS) == set(cases.PRESETS) - {"tiny"}
    code = "import sys, equipool.bench.command; sys.exit('torch' in sys.modules)"
    # a package whose own __init__, which imports torch, is not run
    bare = (
        "import sys, types; bare = types.ModuleType('equipool'); "
        f"bare.__path__ = {list(equipool.__path__)!r}; sys.modules['equipool'] = bare; "
    )
    assert subprocess.run([sys.executable, "-c", bare + code]).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [("--preset", "slow"), ("--path", "magic"), ("--precision", "int8"), ("--mode", "sideways"),
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
