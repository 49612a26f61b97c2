"""The page that the package holds is built from the sources in `explorer/`."""

import hashlib
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from explorer_engine import close, needs_node, run_engine

from equipool.explore.page import PAGE, page_data
from python_blocks import ROOT

SOURCES = ROOT / "explorer"
PACKAGES = SOURCES / "node_modules"
TEXT = PAGE.read_text(encoding="utf-8")
METHODS = ("equilibrium", "attention", "sum")
SHOWN = {
    "median": "median of numbers",
    "maximum": "maximum of numbers",
    "geometric-median": "geometric median of points",
    "enclosing-centre": "centre of the smallest circle around points",
}
ADVICE = "the page is not that of the sources: run `make explorer` and commit page.html"


def test_the_page_is_that_of_the_sources():
    """By a hash that the build writes into the page, so that it needs no npm packages."""
    files = [path.relative_to(SOURCES).as_posix() for path in (SOURCES / "src").rglob("*.*")]
    found = hashlib.sha256()
    for path in sorted([*files, "build.mjs", "networks.json", "package-lock.json"]):
        found.update(f"{path}\n{(SOURCES / path).read_text(encoding='utf-8')}\n".encode())
    written = re.search(r'<meta name="equipool-sources" content="(\w+)">', TEXT)[1]
    assert written == found.hexdigest(), ADVICE


@needs_node
@pytest.mark.skipif(not PACKAGES.exists(), reason="needs explorer/node_modules (make explorer)")
class TestWithPackages:
    def test_building_gives_the_same_page(self, tmp_path):
        out = tmp_path / "page.html"
        command = [shutil.which("node"), "build.mjs", str(out)]
        subprocess.run(command, cwd=SOURCES, check=True, capture_output=True, timeout=60)
        assert out.read_text(encoding="utf-8") == TEXT, ADVICE

    def test_types_are_checked(self):
        tsc = PACKAGES / ".bin" / "tsc"
        done = subprocess.run([tsc], cwd=SOURCES, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout


def test_the_page_is_small_and_loads_nothing():
    assert len(TEXT.encode()) < 500_000
    assert not re.search(r"(src|href)=[\"'](?!data:,)", TEXT)
    assert not re.search(r"\b(fetch|XMLHttpRequest|importScripts)\(|@import|url\(", TEXT)
    addresses = set(re.findall(r"https?://[\w./]+", TEXT))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address


class TestNetworks:
    """The networks of the page, and the errors that it shows."""

    @pytest.fixture
    def set_tasks(self, monkeypatch):
        monkeypatch.syspath_prepend(SOURCES)
        yield __import__("set_tasks")
        sys.modules.pop("set_tasks")

    record = json.loads((SOURCES / "networks.json").read_text(encoding="utf-8"))

    def test_the_page_has_those_of_the_record(self):
        shown = page_data(TEXT)["tasks"]
        assert [task["answer"] for task in shown] == [
            task["answer"] for task in self.record["tasks"]
        ]
        for task, recorded in zip(shown, self.record["tasks"], strict=True):
            for method, network in task["networks"].items():
                assert network.items() <= recorded["networks"][method].items()

    @needs_node
    def test_errors_are_those_of_the_networks(self, set_tasks):
        """Measured again with the page's own code, on other sets of the same kind."""
        cases, targets = [], []
        for task in self.record["tasks"]:
            channels, target = set_tasks.TARGETS[task["answer"]]
            x, mask = set_tasks.sample_sets(30, channels, torch.Generator().manual_seed(2**40))
            elements = [one[real].tolist() for one, real in zip(x, mask, strict=True)]
            for network in task["networks"].values():
                targets.append((network["rmse"], target(x, mask)))
                data = network["network"]
                cases += [{"method": "predict", "network": data, "x": one} for one in elements]
        found = torch.tensor(run_engine_of_all(cases, len(targets)))
        for predictions, (rmse, target) in zip(found, targets, strict=True):
            error = (predictions[:, : target.shape[1]] - target).square().sum(1).mean().sqrt()
            assert rmse / 3 < error < 3 * rmse

    def test_the_guide_shows_their_errors(self):
        guide = (ROOT / "docs" / "explorer.md").read_text(encoding="utf-8")
        for task in self.record["tasks"]:
            errors = [task["networks"][method]["rmse"] for method in METHODS]
            cells = " | ".join(f"{error:.3f}" for error in errors)
            assert f"| {SHOWN[task['answer']]} | {cells} |" in guide

    def test_true_answers(self, set_tasks):
        """On sets whose answers are known."""
        x = torch.tensor([[[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.1, 0.2], [9.0, 9.0]]])
        mask = torch.tensor([[True, True, True, True, False]])
        close(set_tasks.enclosing_centres(x, mask).tolist(), [[1.0, 1.0]])
        close(set_tasks.medians(x, mask).tolist(), [[0.05, 0.1]])
        close(set_tasks.maxima(x, mask).tolist(), [[2.0, 2.0]])
        square = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
        found = set_tasks.geometric_medians(square, torch.ones(1, 4, dtype=torch.bool))
        close(found.tolist(), [[0.5, 0.5]])


def run_engine_of_all(cases, count):
    """`[count, sets, 2]`, numbers padded with zero."""
    found = [[*one, 0.0][:2] for one in run_engine(cases)]
    size = len(found) // count
    return [found[start : start + size] for start in range(0, len(found), size)]
