"""benchmarks/recipe_choices.py."""

import json
from dataclasses import asdict

import pytest
import recipe_choices
from typer.testing import CliRunner

from equipool.experiments.registry import BagsTask
from equipool.training.config import TrainingConfig, flatten, task_from_config


def complete(settings):
    """All fields of a task and all training settings, with their defaults."""
    task = task_from_config({"task": "bags", "fields": settings["fields"]})
    return flatten(asdict(task)) | asdict(TrainingConfig(**settings["training"]))


@pytest.mark.parametrize("variant", recipe_choices.VARIANTS)
def test_one_setting_is_changed_at_a_time(variant):
    usual, found = recipe_choices.settings("converging"), recipe_choices.settings(variant)
    task = task_from_config({"task": "bags", "fields": found["fields"]})
    assert isinstance(task, BagsTask)
    assert TrainingConfig(**found["training"]).steps == 2000
    if variant == "plain":
        assert (task.inner_steps, task.scaling) == (10, "log")
        return
    before, after = complete(usual), complete(found)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    chosen = recipe_choices.VARIANTS[variant]
    # another part of the layer has parameters of its own
    assert all(name in chosen or name.partition(".")[0] in chosen for name in changed)
    assert bool(changed) == (variant != "converging")


def test_variants_that_the_record_has_are_skipped(tmp_path, monkeypatch):
    measured = []

    def measure(fields, training):
        measured.append(fields["scaling"])
        return {"valid_auc": {"5": 0.5}}

    monkeypatch.setattr(recipe_choices, "measure", measure)
    out = tmp_path / "record.json"
    monkeypatch.setattr(recipe_choices, "VARIANTS", {"converging": {}})
    for _ in range(2):
        done = CliRunner().invoke(recipe_choices.app, ["--out", str(out)])
        assert done.exit_code == 0, done.output
    monkeypatch.setattr(recipe_choices, "VARIANTS", {"converging": {}, "log": {"scaling": "log"}})
    CliRunner().invoke(recipe_choices.app, ["--out", str(out)])
    assert measured == ["log-mean", "log"]
    found = json.loads(out.read_text())
    assert list(found["variants"]) == ["converging", "log"]
    assert {"commit", "hardware", "versions"} <= set(found)
