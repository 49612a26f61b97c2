from dataclasses import dataclass, fields
from typing import ClassVar

import pytest

from equipool.cli.documentation import documented_arguments
from equipool.cli.flags import TASK, TRAINING, flags_of
from equipool.cli.presets import PRESETS, find_preset
from equipool.cli.settings import base_values, build
from equipool.cli.values import reader_of, written
from equipool.experiments.inner_loop import InnerLoop
from equipool.experiments.registry import TASKS, MedianTask, MoleculeTask, OmniglotTask
from equipool.training import Task, TrainingConfig


@dataclass(frozen=True)
class Sizes(Task):
    """A task.

    Args:
        batch_size: of a step,
            in two lines.
        seed: of all.
        hidden: sizes.
        dropout: whether.
        learning_rate: of its own; None for none.
    """

    name: ClassVar[str] = "sizes"

    batch_size: int
    seed: int = 0
    hidden: tuple[int, ...] = (600, 300, 32)
    dropout: bool = False
    learning_rate: float | None = None


FLAGS = {flag.option: flag for flag in flags_of(Sizes)}


def names(kind):
    """Of the fields, a task's own before those that all tasks have."""
    every, shared = ([field.name for field in fields(some)] for some in (kind, InnerLoop))
    return [n for n in every if n not in shared] + [n for n in every if n in shared]


@pytest.mark.parametrize("kind", [*TASKS.values(), TrainingConfig])
def test_every_field_is_documented(kind):
    assert list(documented_arguments(kind)) == names(kind)


def test_every_field_has_a_flag():
    for kind in TASKS.values():
        found = [(flag.part, flag.name) for flag in flags_of(kind)]
        expected = [(TASK, name) for name in names(kind)]
        expected += [(TRAINING, name) for name in names(TrainingConfig)]
        assert found == expected
        assert len({flag.option for flag in flags_of(kind)}) == len(found)


def test_flags_tell_what_the_docstring_says():
    assert FLAGS["--batch-size"].about == "of a step, in two lines."
    assert FLAGS["--batch-size"].default is None
    assert FLAGS["--hidden"].default == "600x300x32"
    assert FLAGS["--learning-rate"].part == TASK
    assert FLAGS["--learning-rate"].about == "of its own; none for none."  # as it is to be typed
    assert FLAGS["--training-learning-rate"].name == "learning_rate"


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("--steps", "1e6", 1_000_000),
        ("--steps", "1_000", 1000),
        ("--hidden", "4x5", (4, 5)),
        ("--dropout", "true", True),
        ("--learning-rate", "None", None),
        ("--learning-rate", "1e-3", 0.001),
        ("--capture", "false", False),
        ("--schedule", "cosine", "cosine"),
    ],
)
def test_values_are_read(option, text, value):
    found = FLAGS[option].read(text)
    assert found == value
    assert type(found) is type(value)
    assert FLAGS[option].read(written(value)) == value


@pytest.mark.parametrize(
    ("option", "text"),
    [("--steps", "1.5"), ("--steps", "nan"), ("--hidden", "4,5"), ("--dropout", "1"),
     ("--learning-rate", "fast"), ("--steps", "none")],
)  # fmt: skip
def test_other_values_are_refused(option, text):
    with pytest.raises(ValueError, match=f"{option} is {text!r}, expected "):
        FLAGS[option].read(text)


def test_several_values():
    assert FLAGS["--seed"].read_several("2, 0,2") == (2, 0)
    assert FLAGS["--hidden"].read_several("4x5,6") == ((4, 5), (6,))


def test_a_type_that_no_flag_can_give_is_refused():
    with pytest.raises(TypeError, match="no flag for a field of type"):
        reader_of(dict[str, int])


@pytest.mark.parametrize(
    ("task", "name"), [(task, name) for task, known in PRESETS.items() for name in known]
)
def test_every_preset_can_be_built(task, name):
    kind = TASKS[task]
    built, config = build(kind, base_values(kind, name))
    assert isinstance(built, kind)
    for axis, values in find_preset(task, name).axes.items():
        assert len(values) > 1
        for value in values:
            build(kind, {TASK: {axis: value}, TRAINING: {"steps": config.steps}})


def test_the_median_has_the_presets():
    assert set(PRESETS["median"]) == {"quick", "paper"}
    assert build(MedianTask, base_values(MedianTask, "quick"))[0] == MedianTask.quick()
    assert build(MedianTask, base_values(MedianTask, "paper"))[0] == MedianTask.paper()


def test_characters_have_the_papers_auxiliary_loss():
    _, config = build(OmniglotTask, base_values(OmniglotTask, "paper"))
    assert config.aux_weight == 1e-4  # of molecules, the task has weights of its own


def test_columns_of_labels_are_one_value():
    labels = {flag.option: flag for flag in flags_of(MoleculeTask)}["--labels"]
    assert labels.read_several("A,B") == ("A,B",)


def test_the_help_tells_the_tasks_own_defaults():
    flags = {flag.option: flag for flag in flags_of(MoleculeTask)}
    assert flags["--aux-weight"].default == "0.0"
    assert FLAGS["--aux-weight"].default == "0.0001"
