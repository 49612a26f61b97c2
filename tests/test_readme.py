"""The README's examples run, and its claims hold."""

import json
import re
import tomllib
from statistics import mean

import pytest
import torch
from torch_geometric.nn import aggr

from equipool.cli import make_app
from python_blocks import ROOT, run_page
from shown_numbers import bench_rows

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROSE = re.sub(r"\s+", " ", README)


def test_is_read_in_three_minutes():
    assert len(README.splitlines()) < 130
    assert len(re.sub(r"```.*?```", "", README, flags=re.DOTALL).split()) < 750


def test_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the last one writes a table
    names = run_page("README.md")
    assert names["model"].score(names["bags"], names["labels"]) > 0.8
    command = re.search(r"^equipool (fit .*)$", README, re.MULTILINE)[1]
    make_app()([*command.split(), "--max-seconds", "1"], standalone_mode=False)
    assert (tmp_path / "model" / "model.json").exists()
    assert names["y"].shape == (3, 32)
    torch.testing.assert_close(names["solution"].y, names["y"])
    assert all(parameter.grad is not None for parameter in names["pool"].parameters())
    first = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert len(first.splitlines()) <= 10


def test_links_lead_to_files():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_links_to_every_guide():
    guides = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    guides |= {
        f"docs/reproduction/{path.name}" for path in (ROOT / "docs/reproduction").glob("*.md")
    }
    assert guides - set(re.findall(r"\]\(([^)]+)\)", README)) == {"docs/index.md"}


def test_commands_are_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = set(re.findall(r"make ([a-z-]+)", README)) - {"lists"}
    assert {"demo", "test", "docs"} <= commands
    for command in commands:
        assert re.search(rf"^{command}[ :]", makefile, re.MULTILINE), command


def test_versions_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python, torch_version = re.search(
        r"Python (\S+) or newer, torch (\S+) or newer", README
    ).groups()
    assert project["requires-python"] == f">={python}"
    assert f"torch>={torch_version}" in project["dependencies"]


def read_json(path):
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


class TestExperiments:
    """The table, from the records of the runs."""

    @staticmethod
    def records(folder, **fields):
        found = [read_json(file) for file in sorted((ROOT / "records" / folder).glob("*.json"))]
        return [run for run in found if fields.items() <= run["config"]["fields"].items()]

    @staticmethod
    def row(start):
        (line,) = [line for line in README.splitlines() if line.startswith(f"| [{start}]")]
        cells = [cell.strip().strip("*") for cell in line.strip("|").split("|")]
        return dict(zip(("what", "sum", "attention", "rival", "equilibrium"), cells, strict=True))

    def test_median(self):
        told = self.row("median")
        for method in ("sum", "attention", "equilibrium"):
            runs = self.records("median", aggregation=method, embedding=16)
            assert len(runs) == 3
            assert told[method] == f"{mean(run['metrics']['mse'] for run in runs):.1e}"

    @staticmethod
    def at_best(run, chosen_by, shown):
        best = max(run["curve"], key=lambda entry: entry["metrics"][chosen_by])
        return best["metrics"][shown]

    @pytest.mark.parametrize(
        ("row", "fields", "valid", "test", "text", "rival"),
        [
            ("counting", {}, "validation_accuracy", "test_accuracy", "{:.1%}", "Set Transformer"),
            ("molhiv", {"convolution": "gcn"}, "valid_roc_auc", "test_roc_auc", "{:.4f}", "mean"),
        ],
    )
    def test_scores_at_the_best_validation(self, row, fields, valid, test, text, rival):
        def score(method):
            folder = "omniglot" if row == "counting" else "molecules"
            runs = [
                run
                for run in self.records(folder, aggregation=method, **fields)
                if run["config"]["fields"].get("local_aggregation", "sum") == "sum"
            ]
            return mean(self.at_best(run, valid, test) for run in runs)

        def shown(method):
            return text.format(score(method)).replace("%", " %")

        told = self.row(row)
        for method in ("sum", "attention", "equilibrium"):
            assert told[method] == shown(method)
        name = rival.lower().replace(" ", "-")
        assert told["rival"] == f"{rival}, {shown(name)}"
        assert score(name) > score("pna")


class TestSpeed:
    """The sentences about time, from the records of the benchmarks."""

    def test_one_gpu(self):
        rows = bench_rows("h200-plain")
        typed, captured = (rows[256, path, "tf32"] for path in ("equipool", "equipool-captured"))
        theirs = min(
            (row for (sets, path, _), row in rows.items() if (sets, path) == (256, "pyg")),
            key=lambda row: row["timing"]["median"],
        )
        assert f"take {typed['timing']['median']:.1f} ms for 256 sets" in PROSE
        assert f"takes {theirs['timing']['median']:.0f} ms in the same run" in PROSE
        assert f"by hand takes {captured['timing']['median']:.1f} ms" in PROSE
        assert "a ninth of that layer's memory" in PROSE
        assert 8.5 <= theirs["peak_bytes"] / captured["peak_bytes"] < 9.5

    @staticmethod
    def ratio(name, sets, precision, *paths):
        first, second = (bench_rows(name)[sets, path, precision]["timing"] for path in paths)
        return first["median"] / second["median"]

    def test_two_cores(self):
        shares = [self.ratio("cpu-quick", n, "float32", "equipool", "pyg") for n in (8, 64)]
        low, high = (f"{share:.2f}" for share in sorted(shares))
        assert f"{low} to {high} of PyTorch Geometric's time" in PROSE

    def test_beside_a_sum(self):
        file = ROOT / "benchmarks" / "records" / "h200-networks.json"
        rows = {
            row["path"]: row["timing"]["median"]
            for row in json.loads(file.read_text())["rows"]
            if (row["case"]["workload"], row["precision"]) == ("gin", "tf32")
        }
        typed, captured = (rows[f"equipool{how}"] / rows[f"sum{how}"] for how in ("", "-captured"))
        assert (
            f"{typed:.1f} times as long as with a sum, and {captured:.1f} times captured" in PROSE
        )


class TestPackagedLayer:
    """What the README says of the layer that ships with PyTorch Geometric."""

    @pytest.fixture
    def theirs(self):
        torch.manual_seed(0)
        return aggr.EquilibriumAggregation(4, 8, num_layers=[32, 16], grad_iter=10)

    @pytest.fixture
    def batch(self):
        torch.manual_seed(1)
        return torch.randn(64 * 5, 4), torch.arange(64).repeat_interleave(5)

    def test_is_the_version_that_is_installed_for_the_tests(self):
        spoken_of = re.search(r"version (\d+\.\d+\.\d+)", README)[1]
        assert f"torch_geometric=={spoken_of}\n" in (ROOT / "constraints.txt").read_text()

    def test_depends_on_the_batch(self, theirs, batch):
        x, index = batch
        alone, together = theirs(x[:5])[0], theirs(x, index)[0]
        assert (alone - together).norm() > alone.norm()

    def test_does_not_count(self, theirs, batch):
        x = batch[0][:5]
        torch.testing.assert_close(theirs(x.repeat(3, 1)), theirs(x), rtol=0, atol=1e-5)

    def test_steps_by_another_number_than_it_is_given(self):
        optimizer = aggr.equilibrium.MomentumOptimizer(learning_rate=0.1)
        assert optimizer.learning_rate.item() == pytest.approx(0.744, abs=5e-4)

    def test_fails_in_bfloat16(self, theirs, batch):
        x, index = batch
        with pytest.raises(RuntimeError, match="dtype"):
            theirs.bfloat16()(x.bfloat16(), index)

    def test_fails_in_inference_mode(self, theirs, batch):
        with torch.inference_mode(), pytest.raises(RuntimeError, match="does not require grad"):
            theirs(*batch)

    def test_fails_with_ptr(self, theirs, batch):
        with pytest.raises(NotImplementedError, match="'index'"):
            theirs(batch[0], ptr=torch.arange(0, 321, 5))

    def test_keeps_a_graph_without_gradients(self, theirs, batch):
        with torch.no_grad():
            assert theirs(*batch).requires_grad
