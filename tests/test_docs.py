"""The documentation's examples run."""

import importlib
import re
import sys

import pytest

from python_blocks import ROOT, run_page
from shown_numbers import bench_rows, table_rows

DOCS = ROOT / "docs"
GUIDES = sorted([*DOCS.glob("*.md"), *DOCS.glob("reproduction/*.md")])


EXAMPLES = (
    "index", "quickstart", "idea", "choosing", "stability", "large-sets", "uncertainty",
    "measurements/gradients",
)  # fmt: skip


@pytest.mark.parametrize("page", EXAMPLES)
def test_examples(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of them write files
    run_page(f"docs/{page}.md")


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_shows_no_long_measured_table(page):
    """More than a dozen measured rows are folded, or on a page of their own."""
    shown = re.sub(r"<details.*?</details>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n)+", shown, re.MULTILINE)
    numbers = re.compile(r"\| [\d.,e±+-]+ ")
    long = [table for table in tables if table.count("\n") > 14]
    assert not [table for table in long if len(numbers.findall(table)) > table.count("\n")]


def test_navigation_has_every_page():
    configuration = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r": ([\w/-]+\.md)$", configuration, re.MULTILINE))
    assert listed == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


class TestChoosing:
    """The rows that the guide shows are those of the measurements."""

    guide = (DOCS / "choosing.md").read_text(encoding="utf-8")
    measured = (DOCS / "measurements" / "gradients.md").read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        ("potential", "layer", "solver"),
        [
            ("the paper's", "trained", "Nesterov"),
            ("the paper's", "trained", "SafeguardedNesterov"),
            ("convex", "convex", "StronglyConvexNesterov"),
        ],
    )
    def test_solvers(self, potential, layer, solver):
        ((_, _, converged, steps, milliseconds),) = table_rows(self.guide, potential, f"`{solver}`")
        found = table_rows(self.measured, layer, "64", solver)[0]  # the CPU comes first
        assert (converged, steps) == (found[3], found[4].split(",")[0])
        assert found[-1].startswith(f"{milliseconds} (")

    @pytest.mark.parametrize("steps", ["15", "400"])
    def test_gradients(self, steps):
        ((_, converged, truncated, implicit),) = [
            row for row in table_rows(self.guide, steps) if len(row) == 4
        ]
        trained = self.measured.split("**Trained, the paper's defaults**")[1]
        found = table_rows(trained, "8", steps)[0]
        assert converged == found[2]
        assert found[4].endswith(f", {truncated}")
        assert implicit.split(",")[0] in found[6]
        assert ("falls back" in implicit) == ("100 % fell back" in found[6])


class TestReproduction:
    """The short table of results has the numbers of the generated one."""

    @staticmethod
    def results(page):
        text = (DOCS / "reproduction" / f"{page}.md").read_text(encoding="utf-8")
        short, generated = text.split("## Results")[1].split("<!-- generated: results -->")
        return short, generated.split("<!-- end -->")[0]

    @pytest.mark.parametrize(
        ("page", "methods"),
        [
            ("median", ("equilibrium", "attention", "sum")),
            ("omniglot", ("equilibrium", "set-transformer", "pna", "sum", "attention")),
        ],
    )
    def test_rows(self, page, methods):
        short, generated = self.results(page)
        for method in methods:
            ((_, *shown),) = table_rows(short, method)
            (found,) = [row for row in table_rows(generated) if method in row]
            assert set(shown) <= set(found)

    def test_molecules(self):
        short, generated = self.results("molecules")
        for method in ("equilibrium", "mean", "attention", "pna", "sum"):
            ((_, gcn, gin, paper),) = table_rows(short, method)
            found = [table_rows(generated, net, method, "sum")[0] for net in ("GCN", "GIN")]
            assert [row[6] for row in found] == [gcn, gin]
            assert found[0][-1] == paper
        ((_, *shown, _),) = table_rows(short, "equilibrium, for messages too")
        everywhere = "equilibrium", "equilibrium"
        assert shown == [table_rows(generated, net, *everywhere)[0][6] for net in ("GCN", "GIN")]


class TestPerformance:
    """The tables in short are those of the records."""

    page = (DOCS / "performance.md").read_text(encoding="utf-8").split("## How to read")[0]

    @staticmethod
    def milliseconds(row):
        return f"{row['timing']['median']:.3g} ms"

    def test_one_gpu(self):
        found = bench_rows("h200-plain")
        inference = bench_rows("h200-plain", "inference")
        for sets in (8, 256, 2048):
            theirs = [row for (n, path, _), row in found.items() if (n, path) == (sets, "pyg")]
            typed, captured = (
                [found[sets, path, precision] for precision in ("tf32", "bf16")]
                for path in ("equipool", "equipool-captured")
            )
            fastest = min(theirs, key=lambda row: row["timing"]["median"])
            for rows in ([fastest, *typed, inference[sets, "equipool", "tf32"]], captured):
                cells = " | ".join(self.milliseconds(row) for row in rows)
                assert f"| {sets:,} | {cells} |" in self.page

    def test_two_cores(self):
        found = bench_rows("cpu-quick")
        for sets in (8, 64):
            paths = ("pyg", "equipool", "attention", "sum")
            cells = [self.milliseconds(found[sets, path, "float32"]) for path in paths]
            assert f"| {sets} | {' | '.join(cells)} |" in self.page


class TestIdea:
    @pytest.fixture
    def idea(self, monkeypatch):
        monkeypatch.syspath_prepend(DOCS / "figures")
        yield importlib.import_module("idea")
        sys.modules.pop("idea")

    def test_script_draws_the_pictures_of_the_page(self, idea, monkeypatch, tmp_path):
        monkeypatch.setattr(idea, "TRAINING_STEPS", 1)
        idea.draw_all(tmp_path)
        drawn = {path.name for path in tmp_path.iterdir()}
        shown = re.findall(r"\(figures/(idea-[^)]+)\)", (DOCS / "idea.md").read_text())
        assert drawn == set(shown) == {path.name for path in (DOCS / "figures").glob("idea-*.svg")}

    @pytest.mark.parametrize(
        ("potential", "start", "expected"),
        [("square", 0.0, 0.32), ("absolute", 0.0, -0.1), ("hinge", -2.2, 3.0)],
    )
    def test_layers_of_the_pictures_end_at_the_minimum(self, idea, potential, start, expected):
        x = idea.torch.tensor([[-1.2], [-0.6], [-0.1], [0.5], [3.0]])
        layer = idea.pooling(getattr(idea, potential), start=start)
        assert layer(x).item() == pytest.approx(expected, abs=0.03)
