"""Records, and what is made of them."""

import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from equipool.bench.cases import Case
from equipool.bench.goals import find_goals
from equipool.bench.outcome import Agreement, Floor, Row, Timing
from equipool.bench.plots import draw_record
from equipool.bench.record import Record, git_commit, read_record
from equipool.bench.roofline import Rates
from equipool.bench.table import notes, tables
from equipool.environment import hardware, versions

AGREEMENT = Agreement(1e-7, 2e-7, 3e-7, "layer.weight", 4e-7, sets=8, elements=200)


def row(case: Case, path: str, ms: float, mib: float = 100.0, *, mode="training", **more) -> Row:
    timing = Timing(ms, 0.9 * ms, 1.1 * ms, 0.8 * ms, 1.2 * ms, repeats=7)
    judged = AGREEMENT if path in ("torch", "triton", "captured") else None
    return Row(case, path, more.get("precision", "float32"), mode, "timed", timing=timing,
               peak_bytes=int(mib * 2**20), agreement=more.get("agreement", judged),
               floor=more.get("floor"))  # fmt: skip


def record(preset: str, axis: str, *rows: Row) -> Record:
    return Record(
        preset, axis, f"equipool bench --preset {preset}", "2024-01-02T03:04:05Z", "0123456789ab",
        {"torch": "2.11"}, {"device": "cuda", "cpu": "a processor", "gpu": "a card"},
        [Rates("float32", 1.0, 2.0, 3.0)], list(rows),
    )  # fmt: skip


def layer_record(*, ms: float = 1.5, memory: float = 100.0) -> Record:
    case = Case(8, 26)
    return record(
        "layer",
        "sets",
        row(case, "pyg", 90.0, 164.0),
        row(case, "captured", ms, floor=Floor(1e9, 1e6, 0.5, 0.25)),
        row(replace(case, sets=2048), "pyg", 192.0, 18_764.0),
        row(replace(case, sets=2048), "triton", 20.0, memory),
        Row(case, "compiled", "bf16", "training", "failed", "RuntimeError: no compiler"),
    )


def test_a_record_comes_back_as_it_was(tmp_path):
    written = layer_record()
    written.write(tmp_path / "new" / "record.json")
    assert read_record(tmp_path / "new" / "record.json") == written


def test_a_record_of_another_format_is_refused(tmp_path):
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"format": 0}))
    with pytest.raises(ValueError, match="has format 0, expected 1"):
        read_record(file)


def test_where_and_with_what_is_recorded():
    assert versions()["torch"] == torch.__version__
    found = hardware(torch.device("cpu"))
    assert found["cpu"]
    assert found["threads"] == torch.get_num_threads()
    assert git_commit()


def printed(table) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_tables_say_times_memory_ratios_and_errors():
    small, large = map(printed, tables(layer_record()))
    assert "8 sets of about 26" in small
    assert "2,048 sets" in large
    (line,) = [line for line in small.splitlines() if "captured" in line]
    assert line.split() == ["captured", "float32", "1.5", "1.35-1.65", "100", "60", "3.0",
                            "1e-07", "3e-07"]  # fmt: skip


def test_what_was_not_timed_is_said_once_with_the_reason():
    rows = layer_record().rows
    other = replace(rows[-1], case=Case(256, 26))
    assert notes([*rows, rows[-1], other]) == [
        "compiled bf16: failed: RuntimeError: no compiler (8 x 26, 256 x 26)"
    ]
    assert any("failed" in printed(table) for table in tables(layer_record()))


def reached(*records: Record) -> dict[str, bool]:
    return {goal.name: goal.reached for goal in find_goals(records)}


def test_goals_of_the_layer():
    goals = reached(layer_record())
    assert len(goals) == 2 + 4 + 3
    assert all(goals.values())


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"ms": 2.1}, {"8 sets, captured float32: ms"}),
        (
            {"ms": 2.3},
            {
                "8 sets, captured float32: ms",
                "8 sets, captured float32: times faster than pyg float32",
            },
        ),
        ({"memory": 1550.0}, {"2048 sets, triton float32: MiB"}),
        (
            {"memory": 2000.0},
            {"2048 sets, triton float32: MiB", "2048 sets, triton float32: times less memory"},
        ),
    ],
)
def test_goals_that_are_missed(changed, missed):
    goals = reached(layer_record(**changed))
    assert {name for name, ok in goals.items() if not ok} == missed


@pytest.mark.parametrize(("memory", "ok"), [(109.0, True), (112.0, False)])
def test_memory_may_grow_by_one_output_a_step(memory, ok):
    few, many = (Case(256, 26, num_steps=num_steps) for num_steps in (5, 50))
    kept = 45 * 256 * 300 * 4 / 2**20
    rows = row(few, "triton", 1.0, 100.0), row(many, "triton", 9.0, memory + kept)
    goals = reached(record("steps", "num_steps", *rows))
    assert goals["triton: memory from T = 5 to 50, % more"] == ok


@pytest.mark.parametrize(("ms", "ok"), [(11.0, True), (13.0, False)])
def test_time_is_linear_in_elements(ms, ok):
    small, large = (Case(1, n, varied=False) for n in (10**5, 10**6))
    rows = row(small, "triton", 1.0), row(large, "triton", ms)
    (goal,) = [goal for goal in find_goals([record("elements", "elements", *rows)])
               if goal.name.startswith("triton")]  # fmt: skip
    assert goal.reached == ok


@pytest.mark.parametrize(("ms", "ok"), [(1.4, True), (1.6, False)])
def test_goals_of_networks(ms, ok):
    gin, median = Case(256, 26, workload="gin"), Case(256, 100, workload="median")
    found = find_goals(
        [
            record("gin", "sets", row(gin, "sum-captured", 1.0), row(gin, "captured", ms)),
            record("median", "sets", row(median, "captured", ms), row(median, "torch", 0.1)),
        ]
    )
    assert [goal.reached for goal in found if "error" not in goal.name][:1] == [ok]
    assert [goal.reached for goal in found if goal.name.startswith("median, ")] == [ok]


def test_goals_of_the_cpu():
    case = Case(8, 26, num_steps=5)
    rows = row(case, "pyg", 3.1), row(case, "torch", 1.0)
    assert reached(record("quick", "sets", *rows))["8 sets, CPU: times faster than pyg"]


def test_wrong_numbers_miss_a_goal():
    case = Case(8, 26)
    coarse = row(case, "torch", 1.0, agreement=replace(AGREEMENT, output=2e-5))
    refused = Row(case, "triton", "float32", "training", "disagrees", "wrong")
    goals = reached(record("width", "in_channels", coarse, refused))
    assert not goals["width: float32 output error"]
    assert goals["width: float32 gradient error"]
    assert not goals["width: rows refused for their numbers"]


def test_pictures_of_a_sweep_and_of_a_network(tmp_path):
    sweep = layer_record()
    inference = replace(sweep.rows[0], mode="inference")
    sweep = replace(sweep, rows=[*sweep.rows, inference])
    gin = Case(256, 26, workload="gin")
    network = record("gin", "sets", row(gin, "sum", 1.0), row(gin, "captured", 1.4))
    files = [file for r in (sweep, network) for file in draw_record(r, tmp_path)]
    assert [file.name for file in files] == [
        "performance-layer.svg",
        "performance-layer-inference.svg",
        "performance-gin.svg",
    ]
    assert "captured float32" in files[0].read_text()
    assert "2,048" in files[0].read_text()


def test_a_picture_is_the_same_every_time(tmp_path):
    case = Case(1, 10, varied=False)
    sweep = record("elements", "elements", row(case, "torch", 1.0),
                   row(replace(case, elements=1000), "torch", 90.0))  # fmt: skip
    (first,) = draw_record(sweep, tmp_path / "a")
    (second,) = draw_record(sweep, tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert "proportional" in first.read_text()
