"""The recipes of CONTRIBUTING.md, followed once."""

import os
import re
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from equipool.baselines import AGGREGATIONS, names
from equipool.experiments.registry import TASKS
from python_blocks import ROOT

GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(
    re.findall(r"^### Add an? ([a-z ]+?)(?: to the documentation)?\n(.*?)(?=^##)", GUIDE,
               re.DOTALL | re.MULTILINE)
)  # fmt: skip
BLOCK = re.compile(r'^```python(?: title="([\w.]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Runs the code of a recipe in an empty folder. What it registers is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    registries = {id(one): (one, dict(one)) for one in (AGGREGATIONS, names.PLAIN, TASKS)}

    def run(recipe):
        namespace = {"__name__": f"recipe_{recipe.replace(' ', '_')}", "torch": torch}
        module = ModuleType(namespace["__name__"])  # where dataclasses look for their types
        monkeypatch.setitem(sys.modules, module.__name__, module)
        for title, code in BLOCK.findall(RECIPES[recipe]):
            if title:
                (tmp_path / title).write_text(code)
            else:
                exec(compile(code, f"recipe: {recipe}", "exec"), namespace)
        return namespace

    yield run
    for registry, before in registries.values():
        registry.clear()
        registry.update(before)
    sys.modules.pop("cube_kernels", None)


def test_there_is_a_recipe_for_everything():
    assert set(RECIPES) == {
        "potential", "solver", "regulariser", "kernel", "rival", "experiment", "flag",
        "report section", "picture", "law", "option of the table reader",
    }  # fmt: skip


@pytest.mark.parametrize(
    "recipe", ["potential", "solver", "regulariser", "rival", "report section", "law"]
)
def test_recipe(follow, recipe):
    torch.manual_seed(0)
    follow(recipe)


def test_kernel(follow):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the recipe runs in Triton's interpreter, on the CPU")
    follow("kernel")


def test_picture(follow, tmp_path):
    pytest.importorskip("matplotlib").use("agg")
    follow("picture")
    first = (tmp_path / "mean.svg").read_text()
    assert first.lstrip().startswith("<?xml")


def help_of(tmp_path, recipe, task, change):
    """The help of `equipool train` with the recipe's code as a module and the task listed."""
    ((_, code),) = BLOCK.findall(RECIPES[recipe])
    (tmp_path / "own_task.py").write_text(code.partition("TASKS[")[0])
    start = f"""
import runpy, sys
from dataclasses import replace
from equipool.experiments.presets import EXPERIMENTS, Experiment
EXPERIMENTS[{task!r}] = {change}
sys.argv = ["equipool", "train", {task!r}, "--help"]
runpy.run_module("equipool", run_name="__main__")
"""
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"COLUMNS": "200", "TERM": "dumb", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", start], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
def test_experiment_is_a_command(follow, tmp_path):
    follow("experiment")
    assert (tmp_path / "runs" / "largest" / "record.json").is_file()
    listed = 'Experiment("The maximum of a set.", "own_task", "LargestTask", {})'
    assert "--set-size" in help_of(tmp_path, "experiment", "largest", listed)


@pytest.mark.processes
def test_flag_is_a_flag_of_the_command(follow, tmp_path):
    task = follow("flag")["ShiftedMedianTask"]
    with pytest.raises(ValueError, match="shift is 100"):
        task(shift=100.0)
    changed = 'replace(EXPERIMENTS["median"], module="own_task", kind="ShiftedMedianTask")'
    shown = help_of(tmp_path, "flag", "median", changed)
    assert "--shift" in shown
    assert "added to every number" in shown


@pytest.mark.parametrize("recipe", RECIPES)
def test_paths_exist(recipe):
    """Files and folders that a recipe names, other than those it tells you to create."""
    told = re.findall(r"`((?:src/equipool|tests|docs)/[\w./-]+)`", RECIPES[recipe])
    assert told
    assert [path for path in told if "NAME" not in path and not (ROOT / path).exists()] == []
    inside = re.findall(r"`((?:potentials|solvers|baselines|ops|report|experiments)/[\w]+\.py)`",
                        RECIPES[recipe])  # fmt: skip
    assert [path for path in inside if not (ROOT / "src" / "equipool" / path).exists()] == []


def test_commands_are_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([a-z-]+)", GUIDE, re.MULTILINE):
        assert re.search(rf"^[a-z -]*\b{target}\b.*:", makefile, re.MULTILINE), target
