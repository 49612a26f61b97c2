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


@pytest.fixture
def set_tasks(monkeypatch):
    """explorer/set_tasks.py."""
    monkeypatch.syspath_prepend(SOURCES)
    yield __import__("set_tasks")
    sys.modules.pop("set_tasks")


def test_the_page_has_the_networks_of_the_record():
    guide = (ROOT / "docs" / "explorer.md").read_text(encoding="utf-8")
    record = json.loads((SOURCES / "networks.json").read_text(encoding="utf-8"))["tasks"]
    for task, recorded in zip(page_data(TEXT)["tasks"], record, strict=True):
        assert task["answer"] == recorded["answer"]
        for method, network in task["networks"].items():
            assert network.items() <= recorded["networks"][method].items()
        errors = [recorded["networks"][method]["rmse"] for method in METHODS]
        assert "| " + " | ".join(f"{error:.3f}" for error in errors) + " |" in guide


@needs_node
def test_errors_are_those_of_the_networks(set_tasks):
    """Measured again with the page's own code, on other sets of the same kind."""
    for task in page_data(TEXT)["tasks"]:
        channels, target = set_tasks.TARGETS[task["answer"]]
        x, mask = set_tasks.sample_sets(30, channels, torch.Generator().manual_seed(2**40))
        elements = [one[real].tolist() for one, real in zip(x, mask, strict=True)]
        for network in task["networks"].values():
            data = network["network"]
            cases = [{"method": "predict", "network": data, "x": one} for one in elements]
            error = (torch.tensor(run_engine(cases)) - target(x, mask)).square().sum(1).mean()
            assert network["rmse"] / 3 < error.sqrt() < 3 * network["rmse"]


def test_true_answers(set_tasks):
    """On sets whose answers are known."""
    x = torch.tensor([[[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.1, 0.2], [9.0, 9.0]]])
    mask = torch.tensor([[True, True, True, True, False]])
    close(set_tasks.enclosing_centres(x, mask).tolist(), [[1.0, 1.0]])
    close(set_tasks.medians(x, mask).tolist(), [[0.05, 0.1]])
    close(set_tasks.maxima(x, mask).tolist(), [[2.0, 2.0]])
    square = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    found = set_tasks.geometric_medians(square, torch.ones(1, 4, dtype=torch.bool))
    close(found.tolist(), [[0.5, 0.5]])
