"""Records, and what is made of them."""

import json
from dataclasses import replace

import pytest
import torch
from plot import draw_record
from rich.console import Console

from equipool.bench.cases import Case
from equipool.bench.paths import PATHS
from equipool.bench.record import (
    Agreement,
    Floor,
    Rates,
    Record,
    Row,
    Timing,
    git_commit,
    read_record,
)
from equipool.bench.terminal import notes, tables
from equipool.environment import hardware, versions
from python_blocks import ROOT

AGREEMENT = Agreement(1e-7, 2e-7, 3e-7, "layer.weight", 4e-7, sets=8, elements=200)


def row(case: Case, path: str, ms: float, mib: float = 100.0, *, mode="training", **more) -> Row:
    timing = Timing(ms, 0.9 * ms, 1.1 * ms, 0.8 * ms, 1.2 * ms, repeats=7)
    judged = AGREEMENT if path in ("equipool", "equipool-captured") else None
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
        row(case, "equipool-captured", ms, floor=Floor(1e9, 1e6, 0.5, 0.25)),
        row(replace(case, sets=2048), "pyg", 192.0, 18_764.0),
        row(replace(case, sets=2048), "equipool", 20.0, memory),
        Row(case, "equipool-compiled", "bf16", "training", "failed", "RuntimeError: no compiler"),
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


@pytest.mark.parametrize("name", ["cpu-quick", "cpu-elements", "h200-layer"])
def test_older_records_are_read_under_the_paths_names_of_today(name):
    file = ROOT / "benchmarks" / "records" / f"{name}.json"
    written = {row["path"] for row in json.loads(file.read_text())["rows"]}
    found = {row.path for row in read_record(file).rows}
    assert written & {"torch", "captured"}
    assert found - {"gmt"} <= set(PATHS)
    assert len(found) == len(written)
    assert ("equipool" in found) == name.startswith("cpu")


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


def test_tables_have_a_row_per_path_with_its_ratios():
    small, large = map(printed, tables(layer_record()))
    assert "8 sets of about 26" in small
    assert "2,048 sets" in large
    (line,) = [line for line in small.splitlines() if "captured" in line]
    cells = line.split()
    assert cells[:3] == ["equipool-captured", "float32", "1.5"]
    assert "60" in cells  # times faster than PyG's 90 ms
    assert "3.0" in cells  # times the floor of 0.5 ms


def test_what_was_not_timed_is_said_once_with_the_reason():
    rows = layer_record().rows
    other = replace(rows[-1], case=Case(256, 26))
    (note,) = notes([*rows, rows[-1], other])
    assert note.startswith("equipool-compiled bf16: failed: RuntimeError: no compiler")
    assert note.count("256 x 26") == note.count("(8 x 26") == 1
    assert any("failed" in printed(table) for table in tables(layer_record()))


def test_pictures_of_a_sweep_and_of_a_network(tmp_path):
    sweep = layer_record()
    inference = replace(sweep.rows[0], mode="inference")
    sweep = replace(sweep, rows=[*sweep.rows, inference])
    gin, median = Case(256, 26, workload="gin"), Case(256, 100, workload="median")
    network = record("networks", "workload", row(gin, "sum", 1.0), row(median, "sum", 1.4))
    files = [file for r in (sweep, network) for file in draw_record(r, tmp_path)]
    assert [file.name for file in files] == [
        "performance-layer.svg",
        "performance-layer-inference.svg",
        "performance-networks.svg",
    ]
    assert "median: sum float32" in files[2].read_text()
    assert "equipool-captured float32" in files[0].read_text()
    assert "2,048" in files[0].read_text()


def test_a_picture_is_the_same_every_time(tmp_path):
    case = Case(1, 10, varied=False)
    sweep = record("elements", "elements", row(case, "equipool", 1.0),
                   row(replace(case, elements=1000), "equipool", 90.0))  # fmt: skip
    (first,) = draw_record(sweep, tmp_path / "a")
    (second,) = draw_record(sweep, tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert "proportional" in first.read_text()
