"""The page on uncertainty has the numbers and the picture of its script."""

import json
import re
from dataclasses import replace

import pytest
from figure_scripts import FIGURES, ROOT, load_script

from shown_numbers import table_rows

PAGE = (ROOT / "docs" / "uncertainty.md").read_text(encoding="utf-8")
RECORD = ROOT / "benchmarks" / "records" / "cpu-uncertainty.json"
NETWORKS = json.loads(RECORD.read_text(encoding="utf-8"))["networks"]


def percent(fraction):
    return f"{100 * fraction:.1f} %"


@pytest.mark.parametrize(("row", "name"), [("neural process", "sines"), ("median", "median")])
def test_coverage(row, name):
    found = NETWORKS[name]
    ((_, *cells),) = table_rows(PAGE, row)
    numbers = [f"{found[key]:.2g}" for key in ("temperature", "half_width", "constant_width")]
    coverages = [percent(found[key]) for key in ("coverage", "coverage_without_temperature")]
    assert cells == [numbers[0], *coverages, *numbers[1:]]
    assert 0.85 <= found["coverage"] <= 0.95  # the goal


def test_by_number_of_observations():
    ((_, *sizes),) = table_rows(PAGE, "observations")
    by_size = NETWORKS["sines"]["by_size"]
    ((_, *coverage),) = table_rows(PAGE, "coverage")
    assert coverage == [percent(by_size[size]["coverage"]) for size in sizes]
    ((_, *widths),) = table_rows(PAGE, "mean half width")
    assert widths == [f"{by_size[size]['half_width']:.2f}" for size in sizes]


def test_what_the_page_says_of_the_widths():
    sines, median = NETWORKS["sines"], NETWORKS["median"]
    one, twelve = sines["by_size"]["1"], sines["by_size"]["12"]
    assert twelve["half_width"] < one["half_width"] / 3
    assert (
        one["coverage"]
        < 0.88
        < min(found["coverage"] for size, found in sines["by_size"].items() if int(size) > 2)
    )
    assert 0.8 < median["half_width"] / median["constant_width"] < 1
    assert sines["half_width"] < sines["constant_width"]


def test_what_the_page_says_of_the_run():
    script = load_script("neural_process")
    assert f"{script.SETS:,} held-out sets" in PAGE
    assert f"noise of\ndeviation {script.NOISE}" in PAGE
    for name, found in NETWORKS.items():
        assert found["sets"] == script.SETS
        assert found["training"]["steps"] == script.STEPS[name]


@pytest.mark.filterwarnings("ignore:.* sets .*:UserWarning")  # three steps train no equilibrium
def test_the_script_writes_record_and_picture(tmp_path, monkeypatch):
    script = load_script("neural_process")
    monkeypatch.setattr(script, "STEPS", {"sines": 3, "median": 3})
    monkeypatch.setattr(script, "SETS", 40)
    task = script.median_task()
    monkeypatch.setattr(script, "median_task", lambda: replace(task, evaluation_sets=10))
    script.main([str(tmp_path)])
    written = json.loads((tmp_path / script.RECORD).read_text())
    assert {"command", "date", "commit", "versions", "hardware"} < set(written)
    for name, found in written["networks"].items():
        assert found.keys() == NETWORKS[name].keys()
        assert 0 <= found["coverage"] <= 1
    shown = re.findall(r"\(figures/([^)]+)\)", PAGE)
    assert shown == [script.PICTURE]
    assert (tmp_path / script.PICTURE).exists()
    assert (FIGURES / script.PICTURE).exists()
