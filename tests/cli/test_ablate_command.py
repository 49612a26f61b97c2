"""`equipool ablate molecules`: what the paper varied, and nothing else."""

import json
import shlex
import time

import pytest

import molecule_table
from commands import call
from equipool import training
from equipool.cli import sweep
from equipool.training import read_record

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

# The study goes down to potentials that the layer warns about.
pytestmark = pytest.mark.filterwarnings("ignore:hidden is")

SHORT = {"--steps": "4", "--chunk": "4", "--evaluate-every": "2", "--checkpoint-every": "2"}
STEPS = [("equilibrium", steps) for steps in (1, 2, 5, 10)] + [("sum", 2)]
WEIGHTS = [1e-4, 1e-3, 1e-2, 1e-1, 1]
CAPACITIES = [[1, 1, 1], [4, 2, 1], [7, 5, 2], [12, 8, 4], [16, 10, 5]]


def invoke(*words, status=0):
    return call("ablate", "molecules", *words, status=status)


def flags_in(folder):
    flags = molecule_table.flags_for(folder / "table.csv") | SHORT
    flags |= {"--out": folder / "runs", "--data-dir": folder / "data"}
    return [word for pair in flags.items() for word in pair]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All ablations: the folder, and what was printed."""
    folder = tmp_path_factory.mktemp("ablate")
    molecule_table.write_table(folder / "table.csv")
    done = invoke(*flags_in(folder))
    return folder, done.output


def fields_in(folder):
    files = sorted(folder.glob("*/config.json"))
    return [json.loads(file.read_text())["fields"] for file in files]


def test_each_folder_has_the_papers_values(whole):
    folder = whole[0] / "runs"
    assert {path.name for path in folder.iterdir()} == {"steps", "aux-weight", "capacity"}
    steps, weights, capacities = (
        fields_in(folder / name) for name in ("steps", "aux-weight", "capacity")
    )
    assert sorted((one["aggregation"], one["inner_steps"]) for one in steps) == sorted(STEPS)
    assert sorted(one["readout_aux_weight"] for one in weights) == WEIGHTS
    assert sorted(one["potential"] for one in capacities) == CAPACITIES
    for runs, convolution, varied in (
        (steps, "gcn", {"aggregation", "inner_steps"}),
        (weights, "gin", {"readout_aux_weight"}),
        (capacities, "gcn", {"potential"}),
    ):
        assert {one["convolution"] for one in runs} == {convolution}
        different = {name for name in runs[0] for one in runs if one[name] != runs[0][name]}
        assert different == varied


def test_auxiliary_losses_are_weighed_once(whole):
    for file in (whole[0] / "runs").glob("*/*/config.json"):
        assert json.loads(file.read_text())["training"]["aux_weight"] == 0


def test_the_tables_say_what_the_records_do(whole):
    folder, output = whole
    for study, varied in (("steps", "inner_steps"), ("capacity", "potential")):
        table = output.split(f"molecules: {varied} ")[-1].splitlines()[4:9]
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table]
        found = {row[1]: row for row in rows}
        assert len(found) == 5
        for file in (folder / "runs" / study).glob("*/record.json"):
            record = read_record(file)
            fields = record.config["fields"]
            value = "-" if fields["aggregation"] == "sum" else str(fields[varied])
            best = max(record.curve, key=lambda entry: entry["metrics"]["valid_score"])["metrics"]
            seconds = record.training_seconds / record.steps
            assert found[value][0] == fields["aggregation"]
            assert found[value][2:] == [
                "1", f"{best['valid_score']:.3g}", f"{best['test_score']:.3g}", f"{seconds:.3g}"
            ]  # fmt: skip
    assert list(found) == [str(sizes) for sizes in CAPACITIES]


def test_there_is_a_picture_of_each(whole):
    folder = whole[0] / "runs"
    for name in ("steps/inner-steps", "aux-weight/readout-aux-weight", "capacity/potential"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_done_is_skipped(whole, monkeypatch):
    def unexpected(*arguments, **options):
        raise AssertionError("there is nothing to train")

    monkeypatch.setattr(training, "train_together", unexpected)
    again = invoke(*flags_in(whole[0]))
    assert again.output.count("0 to resume, 0 to start") == 4
    # what is under the heading of the last table
    assert again.output.split("molecules: ")[-1] == whole[1].split("molecules: ")[-1]


def test_some_alone_stopped_and_gone_on_with(tmp_path, stop_at):
    molecule_table.write_table(tmp_path / "table.csv")
    stop_at(10)
    stopped = invoke(*flags_in(tmp_path), "--only", "capacity", status=3)
    told = stopped.output.splitlines()[-1].partition("To resume all ablations: equipool ")[2]
    assert told.startswith("ablate molecules ")
    done = call(*shlex.split(told))
    assert "1 to resume" in done.output
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["capacity"]
    assert len(fields_in(tmp_path / "runs" / "capacity")) == 5


@pytest.fixture
def swept(monkeypatch):
    """What each sweep is asked for, by the flags' names; none is begun."""
    found = []

    def take(request, options):
        given = {flag.name: text for flag, text in request.given.items()}
        found.append((given, options))

    monkeypatch.setattr(sweep, "run", take)
    monkeypatch.setattr(sweep, "_draw", lambda folder, setting: None)
    return found


def test_flags_hold_in_all_runs_but_for_what_is_varied(swept):
    flags = ["--convolution", "gin", "--inner-steps", "7", "--potential", "20x10", "--seed", "0,1"]
    invoke(*flags, "--steps", "5", "--out", "somewhere", "--together", "2")
    steps, beside, weights, capacities = (given for given, _ in swept)
    assert steps["inner_steps"] == "1,2,5,10"
    assert (beside["aggregation"], beside["inner_steps"]) == ("sum", "7")
    assert (weights["inner_steps"], weights["potential"]) == ("7", "20x10")
    assert capacities["potential"] == "2x1,6x3,12x6,20x10,26x13"
    for given, options in swept:
        assert (given["convolution"], given["seed"], given["steps"]) == ("gin", "0,1", "5")
        assert options.together == 2
    names = [options.out.as_posix() for _, options in swept]
    assert names == [f"somewhere/{name}" for name in ("steps", "steps", "aux-weight", "capacity")]


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ([], "60x30x3,180x90x10,360x180x19,600x300x32,780x390x42"),
        (["--preset", "paper"], "60x30x3,180x90x10,360x180x19,600x300x32,780x390x42"),
        (["--preset", "quick"], "13x6x3,38x19x10,77x38x19,128x64x32,166x83x42"),
    ],
)
def test_capacities_are_shares_of_the_presets_sizes(swept, preset, expected):
    invoke("--only", "capacity", "--steps", "1", *preset)
    ((given, options),) = swept
    assert given["potential"] == expected
    assert (given["aggregation"], given["convolution"]) == ("equilibrium", "gcn")
    assert options.preset == (preset[-1] if preset else None)
    assert options.out.as_posix() == "runs/molecules-ablations/capacity"


def test_all_sweeps_share_the_seconds(swept, monkeypatch):
    clock = iter([100.0, 100.0, 130.0, 180.0, 230.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    invoke("--steps", "1", "--max-seconds", "100")
    left = [options.max_seconds for _, options in swept]
    assert left == [100.0, 70.0, 20.0, 0.1]
