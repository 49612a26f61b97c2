"""benchmarks/chunks.py and benchmarks/sharding.py: they run, and the page shows their records."""

import json

import chunks
import pytest
import sharding
from typer.testing import CliRunner

from python_blocks import ROOT

PAGE = (ROOT / "docs" / "large-sets.md").read_text(encoding="utf-8")


def read(name):
    return json.loads((ROOT / "benchmarks" / "records" / f"{name}.json").read_text())


def test_chunks_are_measured(tmp_path):
    flags = ["--elements", "3000", "--compared", "2000", "--repeats", "2"]
    done = CliRunner().invoke(chunks.app, [*flags, "--out", str(tmp_path / "record.json")])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "record.json").read_text())
    assert found["disk"]["peak_anonymous_bytes"] >= found["disk"]["anonymous_bytes_before"]
    assert found["disk"]["peak_resident_bytes"] >= found["disk"]["peak_anonymous_bytes"]
    assert found["disk"]["file_bytes"] > 3000 * chunks.CHANNELS * 4
    for unit in ("seconds", "cpu_seconds"):
        assert {len(times) for times in found["comparison"][unit].values()} == {2}
        assert len(found["comparison"][f"speed_by_{unit}"]) == 3


def test_speeds():
    assert chunks.speeds([2.0, 3.0], [4.0, 4.0]) == {
        "median": 0.625, "lowest": 0.5, "highest": 0.75, "of_fastest": 0.5,
    }  # fmt: skip


def test_ratios_of_several_processes():
    found = sharding.summary([[4.0, 2.0, 3.0, 1.0], [5.0, 2.0, 2.0, 1.5]])
    assert found["ratio"] == {"median": 0.575, "lowest": 0.4, "highest": 0.75, "of_fastest": 0.5}
    assert found["cpu_ratio"]["median"] == 0.625


class TestPage:
    def test_memory_and_time_of_the_set_on_disk(self):
        disk = read("cpu-chunks")["disk"]
        assert disk["elements"] == 10**7
        assert disk["within_2_gib"]
        assert f"{disk['peak_resident_bytes'] / 2**20:.0f} MiB" in PAGE
        assert f"{disk['peak_anonymous_bytes'] / 2**20:.0f} MiB" in PAGE
        assert f"{disk['cpu_seconds']:.0f} s of CPU time" in PAGE
        assert f"{(disk['forward_seconds'] + disk['backward_seconds']) / 60:.0f} minutes" in PAGE

    @pytest.mark.parametrize("kind", ["chunks in host memory", "chunks on disk"])
    def test_speed_of_chunks(self, kind):
        speed = read("cpu-chunks")["comparison"]["speed_by_cpu_seconds"][kind]
        row = (
            f"| {kind} | {speed['median']:.2f} | {speed['lowest']:.2f} to {speed['highest']:.2f} |"
        )
        assert row in PAGE

    def test_several_processes(self):
        record = read("cpu-sharding")
        cpu, passed = record["cpu_ratio"], record["ratio"]
        assert f"{cpu['median']:.2f} ({cpu['lowest']:.2f} to {cpu['highest']:.2f})" in PAGE
        assert f"{passed['median']:.2f} ({passed['lowest']:.2f} to {passed['highest']:.2f})" in PAGE
        assert f"load of {record['load_before_and_after'][1]:.0f}" in PAGE
