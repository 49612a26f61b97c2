"""benchmarks/influence.py, and the page that shows its record."""

import json

import influence as script
import pytest
import torch
from typer.testing import CliRunner

from equipool.bench.record import read_content
from python_blocks import ROOT, run_page

RECORD = ROOT / "benchmarks" / "records" / "cpu-influence.json"


def test_a_curve_removes_the_largest_scores_first():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 7.0, 0.0, 0.0]])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])

    def predict(kept):
        assert not (kept & ~mask).any()
        return (x * kept).sum(-1)

    curve = script.deletion_curve(predict, mask, x, (0.0, 0.5, 1.0))
    assert curve == pytest.approx([0, -(3 + 4 + 7) / 2, -(10 + 12) / 2])
    last = torch.where(x == 4, torch.nan, x)  # no score: removed last
    assert script.deletion_curve(predict, mask, last, (0.0, 0.25))[1] == pytest.approx(-3 / 2)
    assert script.area([0, -2, -6], (0.0, 0.5, 1.0)) == pytest.approx(-2.5)


def test_rank_correlation():
    a = torch.tensor([3.0, 1.0, 2.0, 9.0])
    assert script.spearman(a, a.exp()) == pytest.approx(1)
    assert script.spearman(a, -a) == pytest.approx(-1)
    assert script.spearman(a, torch.tensor([1.0, 2.0, 3.0, 4.0])) == pytest.approx(0.4)


def test_missed_goals_are_named():
    row = {"search": "s", "rank_correlation": 0.96, "median_relative_error": 0.04}
    good = {"accuracy": [row], "time": {"ratio": {"median": 4.9}}}
    assert script.missed_goals(good) == []
    bad = row | {"rank_correlation": 0.9, "median_relative_error": float("nan")}
    bad = {"accuracy": [bad], "time": {"ratio": {"median": 5.1}}}
    assert [line.split()[1] for line in script.missed_goals(bad)] == ["rank", "median", "5.10"]


def test_the_command_writes_a_record(tmp_path):
    out = tmp_path / "record.json"
    flags = {"steps": 2, "sets": 3, "deleted": 2, "size": 4, "repeats": 1, "out": out}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    done = CliRunner().invoke(script.app, words)
    content = read_content(out)
    assert done.exit_code == (1 if content["missed"] else 0)
    assert all(line in done.output for line in content["missed"])
    assert content["plan"]["set_size"] == 4
    assert content["time"]["elements"] == 12
    assert content["network"]["task"]["seed"] == 0
    first, second = content["accuracy"]
    assert first["sets"] == 2
    assert second["search"] == "80 steps, float32"
    assert len(content["curves"]["by"]) == 4
    assert '"NaN"' not in out.read_text()


def test_precise_searches_delete():
    """What the script compares with is the output without the element."""
    plan = script.Plan(steps=1, set_size=5)
    network = script.task_of(plan, "equilibrium", seed=0).network().eval()
    network.aggregation.regularizer = script.equipool.SquaredNorm(2.0)
    subject = script.precise(script.median_subject(network, script.median_sets(1, 5)), network)
    found = script.equipool.influence(
        subject.layer, subject.x, function=subject.head, method="exact"
    )
    full = subject.predict(subject.mask)
    for element in range(5):
        mask = subject.mask.clone()
        mask[0, element] = False
        expected = float(subject.predict(mask).detach() - full.detach())
        assert float(found.effect[0, element]) == pytest.approx(expected, abs=1e-7)


class TestPage:
    page = (ROOT / "docs" / "influence.md").read_text(encoding="utf-8")

    def test_the_example_runs(self):
        run_page("docs/influence.md")

    def test_the_numbers_are_those_of_the_record(self):
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        for row in record["accuracy"]:
            cells = (
                row["search"], f"{row['converged_sets']} of {row['sets']}",
                f"{row['rank_correlation']:.3f}", f"{row['median_relative_error']:.1%}",
                f"{row['relative_error_90']:.1%}",
            )  # fmt: skip
            assert f"| {' | '.join(cells).replace('%', ' %')} |" in self.page
        ratio = record["time"]["ratio"]
        shown = f"{ratio['median']:.1f} ({ratio['fastest']:.1f} to {ratio['slowest']:.1f})"
        assert shown in self.page
        for name, curve in record["curves"]["by"].items():
            assert f"| {name} | {curve['area']:+.3f} |" in self.page
