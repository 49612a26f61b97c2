"""benchmarks/influence.py, and the page that shows its record."""

import influence as script
import influence_page as page
import influence_subjects as subjects
import pytest
import torch
from page_tables import fill_tables
from torch import nn
from typer.testing import CliRunner

import tiny_bags
from equipool import SquaredNorm, closed_form
from equipool.baselines import AttentionPooling
from equipool.bench.record import read_content
from equipool.experiments.bags import BagsTask
from equipool.experiments.molecules import MoleculeTask
from equipool.experiments.molecules.storage import predict
from equipool.training import TrainingConfig, load_network, train
from generated_molecules import generated, serve
from python_blocks import ROOT, run_page

CPU = torch.device("cpu")
ONE_STEP = TrainingConfig(steps=1, evaluate_every=1)


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
    assert content["equilibrium"]["fields"]["seed"] == 0
    first, second = content["accuracy"]
    assert first["sets"] == 2
    assert second["search"] == "40 steps, float32"
    assert list(content["converged"]) == ["40", "200"]
    assert list(content["curves"]) == ["equilibrium", "attention"]
    assert '"NaN"' not in out.read_text()


def test_precise_searches_delete():
    """What the script compares with is the output without the element."""
    subject, _ = subjects.trained_median("equilibrium", 1, 5, 1, 0)
    subject.layer.regularizer = SquaredNorm(20.0)  # one minimum, whatever the start
    subject = script.precise(subject)
    found = script.equipool.influence(
        subject.layer, subject.x, function=subject.output, method="exact"
    )
    full = subject.predict(subject.mask)
    for element in range(5):
        mask = subject.mask.clone()
        mask[0, element] = False
        expected = float(subject.predict(mask).detach() - full.detach())
        assert float(found.effect[0, element]) == pytest.approx(expected, abs=1e-7)


def test_curves_follow_the_prediction():
    """The means of two sets, 3 and -3: removing what speaks for the sign of each."""
    x = torch.tensor([1.0, 2.0, 6.0]).view(1, 3, 1) * torch.tensor([1.0, -1.0]).view(2, 1, 1)
    mask = torch.ones(2, 3, dtype=torch.bool)
    subject = subjects.Subject(closed_form.mean(1), nn.Identity(), x, mask, is_logit=True)
    curves = script.curves_of(subject)
    assert curves["deviation"] == pytest.approx(18**0.5, rel=1e-3)
    # One element of three is removed at 20 to 40 %, two at 50 %.
    found = curves["by"]["influence"]
    change = [value * curves["deviation"] for value in found["change"]]
    assert change == pytest.approx([0, 0, 0, -1.5, -1.5, -1.5, -2], abs=1e-2)
    size = [value * curves["deviation"] for value in found["size"]]
    assert size == pytest.approx([0, 0, 0, 1.5, 1.5, 1.5, 1], abs=1e-2)


def test_scores_of_attention():
    torch.manual_seed(0)
    pooling, x = AttentionPooling(3, 4, heads=1), torch.randn(2, 5, 3)
    mask = torch.arange(5) < torch.tensor([[5], [2]])
    weights = script.attention_weights(pooling, x, mask)
    pooled = (weights.unsqueeze(-1) * pooling.values(x)).sum(1)
    torch.testing.assert_close(pooled, pooling(x, mask=mask))
    subject = subjects.Subject(pooling, nn.Linear(4, 1), x, mask)
    found = script.scores_of(subject)
    left = mask & (torch.arange(5) != 1)
    expected = subject.predict(mask) - subject.predict(left)
    torch.testing.assert_close(found["deleting each element"][:, 1], expected.detach())
    assert not found["gradient times input"][~mask].any()


class TestRuns:
    """A subject predicts what the network of its run does."""

    @pytest.fixture(autouse=True)
    def _data(self, tmp_path, monkeypatch):
        folder = tmp_path / "data"
        folder.mkdir()
        tiny_bags.write_table(folder)
        monkeypatch.setenv("EQUIPOOL_DATA", str(folder))

    def test_bags(self, tmp_path):
        task = BagsTask(dataset="musk1", width=8, embedding=4, head_width=8, potential=(8, 8, 4))
        train(task, ONE_STEP, tmp_path / "run", device="cpu")
        subject, about = subjects.subject_of_run(tmp_path / "run", 4)
        found = task.training_bags(CPU)
        chosen = subjects.some_of(found.split.test, 4)
        expected = found.predict(load_network(tmp_path / "run"), chosen)
        torch.testing.assert_close(subject.predict(subject.mask).double(), expected)
        assert subject.is_logit
        assert about["fields"]["dataset"] == "musk1"
        assert about["metrics"]["test_auc"] >= 0
        row = script.accuracy(subject.first(2))[0]
        assert row["sets"] == 2
        assert row["elements"] + row["not_definite"] <= int(subject.first(2).mask.sum())

    def test_molecules(self, tmp_path, monkeypatch):
        molecules = generated()
        serve(molecules, monkeypatch)
        task = MoleculeTask(depth=1, width=8, potential=(8, 8, 4), batch_size=8)
        train(task, ONE_STEP, tmp_path / "run", device="cpu")
        subject, _ = subjects.subject_of_run(tmp_path / "run", 6)
        chosen = subjects.some_of(molecules.split["test"], 6)
        storage = task.data().storage(CPU)
        expected = predict(load_network(tmp_path / "run"), storage, molecules, chosen)
        torch.testing.assert_close(subject.predict(subject.mask).detach(), expected[:, 0])
        assert subject.mask.sum(1).tolist() == molecules.num_atoms[chosen].tolist()

    def test_other_runs_are_refused(self, tmp_path):
        task = BagsTask("mean", dataset="musk1", width=8, embedding=4)
        train(task, ONE_STEP, tmp_path / "run", device="cpu")
        done = CliRunner().invoke(script.app, ["--run", str(tmp_path / "run"), "--sets", "2"])
        assert done.exit_code == 2
        assert "--aggregation equilibrium" in done.output


class TestPage:
    def test_the_example_runs(self):
        run_page("docs/influence.md")

    def test_the_numbers_are_those_of_the_records(self):
        text = page.PAGE.read_text(encoding="utf-8")
        assert fill_tables(text, page.tables(page.read())) == text, (
            "run docs/figures/influence_page.py"
        )
        assert f"(figures/{page.PICTURE})" in text
        assert (ROOT / "docs" / "figures" / page.PICTURE).exists()

    def test_the_figure_has_a_panel_per_network(self):
        assert page.draw(page.read()["jets"]).startswith(b"\x89PNG")
