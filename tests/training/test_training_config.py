"""What a run is identified by."""

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from toy import Fed, Toy, config

from equipool.training import Shard, TrainingConfig
from equipool.training.config import (
    FREE,
    differences,
    differences_of_choice,
    run_config,
    task_from_config,
    training_from_config,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0), ("chunk", 0), ("log_every", 0), ("evaluate_every", -1), ("keep_last", 0),
        ("learning_rate", 0.0), ("warmup_steps", -1), ("aux_weight", -1e-4), ("clip_norm", 0.0),
        ("checkpoint_every", 0), ("guard_factor", 1.0),
        ("ema_decay", 1.0), ("beta2", 1.5), ("precision", "16-mixed"), ("clip_norm", math.inf),
        ("schedule", "cosin"),
        ("guard_factor", math.inf), ("learning_rate", math.nan),
        ("aux_start", 1.0), ("aux_start", -0.1), ("aux_initial", 0.0),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}, expected"):
        config(**{name: value})


def test_a_weight_cannot_rise_to_zero():
    with pytest.raises(ValueError, match=r"aux_initial is 0\.1, expected None"):
        config(aux_initial=0.1, aux_weight=0.0)


def test_a_config_comes_back_from_json():
    task, training = Toy(seed=3, broken_steps=(1, 2)), config(steps=7)
    content = json.loads(json.dumps(run_config(task, training)))
    assert content.keys() == {"task", "fields", "training"}
    assert differences(content, run_config(task, training)) == []
    assert task_from_config(content) == task
    assert training_from_config(content) == training


def test_what_is_known_of_the_data_belongs_to_a_run(monkeypatch):
    saved = run_config(Fed(), config())
    assert saved["data"] == {"rows": 3, "columns": ["a", "b"]}
    assert differences(saved, run_config(Fed(), config())) == []
    monkeypatch.setattr(Fed, "rows", 4)
    given = run_config(Fed(), config())
    assert differences(saved, given) == ["data.rows: 3 in the run, 4 here"]
    assert differences_of_choice(saved, given) == []
    assert differences_of_choice(saved, run_config(Fed(seed=1), config())) == [
        "task.seed: 0 in the run, 1 here"
    ]


def test_differences_are_named_field_by_field():
    saved, given = run_config(Toy(), config()), run_config(Toy(seed=1), config(learning_rate=0.5))
    assert differences(saved, given) == [
        "task.seed: 0 in the run, 1 here",
        "training.learning_rate: 0.01 in the run, 0.5 here",
    ]


def test_what_changes_no_number_may_differ():
    changed = {"capture": False, "compile": True, "checkpoint_every": 3}
    changed |= {"keep_last": 4}
    assert changed.keys() == set(FREE)
    assert differences(run_config(Toy(), config()), run_config(Toy(), config(**changed))) == []


def test_a_task_that_is_not_known_is_named_with_those_that_are():
    with pytest.raises(ValueError, match=r"task is 'tuy', expected one of .*'toy'"):
        task_from_config({"task": "tuy", "fields": {}})


def test_the_name_of_a_subclass_of_a_task_is_known():
    @dataclass(frozen=True)
    class Below(Toy):
        name: ClassVar[str] = "below toy"

    assert isinstance(task_from_config({"task": "below toy", "fields": {}}), Below)


def test_a_task_must_be_a_dataclass():
    class NoDataclass:
        name = "none"

    with pytest.raises(TypeError, match="task is a NoDataclass, expected a dataclass"):
        run_config(NoDataclass(), TrainingConfig(steps=1))


def test_shards_are_equal_and_join_to_the_whole():
    rows = torch.arange(24).reshape(2, 12)
    parts = [Shard(rank, 3).part(rows, dim=1) for rank in range(3)]
    assert [part.shape[1] for part in parts] == [4, 4, 4]
    assert torch.equal(torch.cat(parts, 1), rows)


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="7 rows do not divide into 2"):
        Shard(0, 2).part(torch.zeros(7))
    with pytest.raises(ValueError, match="rank must be in"):
        Shard(2, 2)


def test_a_subclass_does_not_take_the_name_that_it_inherits():
    class Changed(Toy):
        pass

    assert Changed.name == Toy.name
    assert type(task_from_config({"task": Toy.name, "fields": {}})) is Toy
