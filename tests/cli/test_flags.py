"""Flags: what is read from the source is what the classes have, and values reach the task."""

import inspect
from dataclasses import MISSING, asdict, fields

import pytest

import equipool
from equipool.baselines import AGGREGATIONS
from equipool.cli.flags import (
    CHOICES,
    REQUIRED,
    TASK,
    TRAINING,
    as_typed,
    flags_of,
    read_parameters,
    reader_of,
)  # fmt: skip
from equipool.cli.train import base_values, build, with_values
from equipool.experiments import inner_loop as parts
from equipool.experiments.presets import EXPERIMENTS
from equipool.experiments.registry import TASKS, MedianTask
from equipool.training import TrainingConfig
from equipool.training.config import PRECISIONS, SHAPES, flatten

FAMILIES = (parts.SOLVERS, parts.LINEAR_SOLVERS, parts.DIFFERENTIATIONS, parts.STARTS, parts.STEPS)
FLAGS = {flag.option: flag for flag in flags_of("median")}
DATACLASSES = [(one.module, one.kind, TASKS[name]) for name, one in EXPERIMENTS.items()]
DATACLASSES.append(("equipool.training.config", "TrainingConfig", TrainingConfig))
CONSTRUCTORS = [(family, kind) for family in FAMILIES for kind in family.classes]


def values_of(**given):
    """Settings of the median with these flags, by their names with `_` for `.`."""
    flags = {flag.name: flag for flag in flags_of("median")}
    typed = {flags[name]: flags[name].read(text) for name, text in given.items()}
    return with_values(base_values("median", None), typed)


@pytest.mark.parametrize(("module", "name", "kind"), DATACLASSES)
def test_the_source_of_a_dataclass_has_its_fields(module, name, kind):
    found = {one.name: one for one in read_parameters(module, name)}
    expected = {field.name: field for field in fields(kind)}
    assert set(found) == set(expected)
    for field in expected.values():
        assert found[field.name].annotation == field.type
        default = REQUIRED if field.default is MISSING else field.default
        assert found[field.name].default == default
        assert found[field.name].about, f"{field.name} is not documented"


@pytest.mark.parametrize(("family", "kind"), CONSTRUCTORS)
def test_the_source_of_a_part_has_its_parameters(family, kind):
    module = __import__(family.module, fromlist=[kind])
    found = {one.name: one for one in read_parameters(family.module, kind)}
    signature = inspect.signature(getattr(module, kind)).parameters.values()
    expected = {one.name: one for one in signature if one.kind is one.POSITIONAL_OR_KEYWORD}
    assert set(found) == set(expected)
    for one in expected.values():
        default = REQUIRED if one.default is one.empty else one.default
        assert found[one.name].default == default
        assert found[one.name].annotation == one.annotation


@pytest.mark.parametrize(
    ("family", "base"),
    [
        (parts.SOLVERS, equipool.Solver),
        (parts.LINEAR_SOLVERS, equipool.LinearSolver),
        (parts.DIFFERENTIATIONS, equipool.Differentiation),
        (parts.STARTS, equipool.Start),
    ],
)
def test_every_public_part_can_be_chosen(family, base):
    public = {
        name
        for name in equipool.__all__
        if inspect.isclass(kind := getattr(equipool, name)) and issubclass(kind, base)
    }
    assert public - {base.__name__} == set(family.classes)


def test_the_help_lists_the_choices_of_the_code():
    known = {"aggregation": AGGREGATIONS, "schedule": SHAPES, "precision": PRECISIONS}
    assert {name: set(names) for name, names in CHOICES.items()} == {
        name: set(names) for name, names in known.items()
    }


@pytest.mark.parametrize("task", EXPERIMENTS)
def test_every_setting_has_one_flag(task):
    """As config.json names it, for the default and for every other part."""
    flags = flags_of(task)
    names = [(flag.section, flag.name) for flag in flags]
    assert len(set(names)) == len(names)
    assert len({flag.option for flag in flags}) == len(flags)
    made, config = build(task, with_values(base_values(task, "quick"), {}))
    expected = {(TASK, name) for name in flatten(asdict(made))}
    expected |= {(TRAINING, name) for name in asdict(config)}
    assert expected <= set(names)


def settings_of_parts():
    needed = {"truncated": {"num_steps": 3}}
    for field, family in (("solver", parts.SOLVERS), ("differentiation", parts.DIFFERENTIATIONS),
                          ("start", parts.STARTS), ("inner_steps", parts.STEPS)):  # fmt: skip
        for name in family.names:
            yield field, family, {"name": name, **needed.get(name, {})}


@pytest.mark.parametrize(("field", "family", "settings"), list(settings_of_parts()))
def test_every_part_and_each_of_its_parameters_can_be_typed(field, family, settings):
    """What is typed is what the layer has, by way of the config as a run saves it."""
    part = family.complete(settings)
    flat = flatten({field: part})
    flags = {flag.name: flag for flag in flags_of("median")}
    assert set(flat) <= set(flags)
    typed = {flags[name]: flags[name].read(as_typed(value)) for name, value in flat.items()
             if value is not None or "." not in name}  # fmt: skip
    made, _ = build("median", with_values(base_values("median", "quick"), typed))
    assert getattr(made, field) == part
    assert flatten(asdict(made)).items() >= flat.items()
    assert made.network() is not None


def test_another_part_takes_its_own_defaults_and_flags_change_those():
    quick = base_values("median", "quick")
    assert quick[TASK]["solver.momentum"] == 0.5
    flags = {flag.name: flag for flag in flags_of("median")}
    same = with_values(quick, {flags["solver.learning_rate"]: 0.3})
    assert (same[TASK]["solver.momentum"], same[TASK]["solver.learning_rate"]) == (0.5, 0.3)
    changed = {flags["solver.learning_rate"]: 0.3, flags["solver"]: "gradient-descent"}
    other = with_values(quick, changed)
    made, _ = build("median", other)
    assert (made.solver["momentum"], made.solver["learning_rate"]) == (0.0, 0.3)


def test_a_number_of_steps_may_have_a_tolerance():
    values = values_of(**{"inner_steps": "7", "inner_steps.tolerance": "0.01", "steps": "1"})
    made, _ = build("median", values)
    assert made.inner_steps == {"name": "fixed", "num_steps": 7, "tolerance": 0.01}


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("--steps", "1e6", 1_000_000),
        ("--steps", "1_000", 1000),
        ("--inner-steps", "5", 5),
        ("--inner-steps", "to-tolerance", "to-tolerance"),
        ("--solver.learnable", "true", True),
        ("--clip-norm", "None", None),
        ("--learning-rate", "1e-3", 0.001),
        ("--capture", "false", False),
        ("--schedule", "cosine", "cosine"),
    ],
)
def test_values_are_read(option, text, value):
    found = FLAGS[option].read(text)
    assert found == value
    assert type(found) is type(value)
    assert FLAGS[option].read(as_typed(value)) == value


@pytest.mark.parametrize(
    ("option", "text"),
    [("--steps", "1.5"), ("--steps", "nan"), ("--solver.learnable", "1"), ("--solver", "newto"),
     ("--inner-steps", "1.5"), ("--learning-rate", "fast"), ("--steps", "none")],
)  # fmt: skip
def test_other_values_are_refused(option, text):
    with pytest.raises(ValueError, match=f"{option} is {text!r}, expected "):
        FLAGS[option].read(text)


def test_several_values():
    assert FLAGS["--seed"].read_several("2, 0,2") == (2, 0)
    molecules = {flag.option: flag for flag in flags_of("molecules")}
    assert molecules["--potential"].read_several("4x5,6") == ((4, 5), (6,))
    assert molecules["--labels"].read_several("A,B") == ("A,B",)  # columns of one table


def test_a_type_without_a_flag_is_refused():
    with pytest.raises(TypeError, match="no flag for a field of type"):
        reader_of("dict[str, int]")


@pytest.mark.parametrize(
    ("task", "name"), [(task, name) for task, one in EXPERIMENTS.items() for name in one.presets]
)
def test_every_preset_can_be_built(task, name):
    made, config = build(task, base_values(task, name))
    assert made == getattr(TASKS[task], name)()
    flags = {flag.name: flag for flag in flags_of(task)}
    for axis, values in EXPERIMENTS[task].presets[name].axes.items():
        assert len(values) > 1
        for value in values:
            changed, _ = build(task, with_values(base_values(task, name), {flags[axis]: value}))
            assert getattr(changed, axis) == value
    assert config.steps > 0


def test_the_papers_auxiliary_losses():
    assert build("omniglot", base_values("omniglot", "paper"))[1].aux_weight == 1e-4
    flags = {flag.option: flag for flag in flags_of("molecules")}
    assert flags["--aux-weight"].default == "0.0"  # the task has weights of its own
    assert FLAGS["--aux-weight"].default == "0.0001"


def test_settings_that_no_flag_changes_are_the_defaults():
    assert build("median", values_of(steps="1"))[0] == MedianTask()
