"""A setting is the same as a Python value, as JSON, and as the text of a flag."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import torch

import equipool
from equipool.settings import (
    OneOf,
    Part,
    Range,
    as_text,
    check_fields,
    from_json,
    read,
    settings_of,
    to_json,
)
from equipool.starts import ZeroStart

SHADES = ("light", "dark")
Solver = Annotated[str, Part("equipool.solvers.Solver")]
Steps = Annotated[int, Range(least=0)] | Annotated[str, Part("equipool.steps.Steps")]


@dataclass(frozen=True)
class Example:
    """One setting of each kind.

    Args:
        count: how many,
            on two lines.
        solver: inner optimiser.
    """

    count: int
    rate: Annotated[float, Range(above=0, most=1)] = 0.5
    limit: float | None = None
    sizes: tuple[int, ...] = (8, 4)
    wide: bool = False
    text: str = ""
    names: tuple[str, ...] | None = None
    shape: Literal["round", "square"] = "round"
    shade: Annotated[str, OneOf(f"{__name__}.SHADES")] = "light"
    solver: Solver = "nesterov"
    steps: Steps = 10

    def __post_init__(self) -> None:
        check_fields(self)


FULL = Example(
    3, 1e-3, 2.0, (600, 32), True, "a, b", ("c", "d e"), "square", "dark",
    "newton:damping=0.1", "to-tolerance:max_steps=7",
)  # fmt: skip


@pytest.mark.parametrize("made", [Example(1), FULL])
def test_settings_come_back_from_json_and_from_flags(made: Example) -> None:
    stored = json.loads(json.dumps(to_json(made)))
    assert from_json(Example, stored) == made
    texts = {name: as_text(value) for name, value in to_json(made).items()}
    assert {name: settings_of(Example)[name].read(text) for name, text in texts.items()} == vars(
        made
    )


def test_settings_have_the_help_of_the_docstring() -> None:
    assert settings_of(Example)["count"].about == "how many, on two lines."


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", 1.5, "count is 1.5, expected a whole number"),
        ("count", True, "count is True, expected a whole number"),
        ("rate", 0, "rate is 0, expected a number more than 0 and at most 1"),
        ("rate", float("nan"), "a number"),
        ("sizes", [1, "2"], "whole number"),
        ("wide", 1, "wide is 1, expected true or false"),
        ("names", ["a", ""], "expected different names separated by commas, or none"),
        ("shade", "grey", "shade is 'grey', expected one of light, dark"),
        ("solver", "magic", "expected one of .*newton"),
        ("solver", "newton:momentum=0.5", "newton has no argument 'momentum': it has damping"),
        ("solver", "nesterov:momentum=1", "momentum is 1"),
        ("solver", "nesterov:momentum=0.5,momentum=0.7", "nesterov is given momentum twice"),
        ("steps", -1, "steps is -1, expected a whole number at least 0, or one of"),
        ("steps", "random:max_steps=3,min_steps=5", "steps is 'random"),
        ("colour", "red", "Example has no setting 'colour': it has count"),
    ],
)
def test_errors_name_the_setting_and_what_is_expected(
    name: str, value: object, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        from_json(Example, {"count": 1, name: value})


def test_a_setting_without_a_default_is_required() -> None:
    with pytest.raises(ValueError, match="count is missing, expected a whole number"):
        from_json(Example, {})


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("1e6", int, 1_000_000),
        ("9007199254740993", int, 9007199254740993),
        (" none ", float | None, None),
        ("5", Steps, 5),
        ("600x32", tuple[int, ...], (600, 32)),
        ("False", bool, False),
        ("a, b", tuple[str, ...], ("a", "b")),
        ("runs/a", Path | None, Path("runs/a")),
    ],
)
def test_text_of_flags(text: str, hint: object, value: object) -> None:
    found = read("--flag", text, hint)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "hint"), [("1.5", int), ("inf", float), ("inf", int), ("1x2.5", tuple[int, ...])]
)
def test_text_of_another_type_is_refused(text: str, hint: object) -> None:
    with pytest.raises(ValueError, match=r"--flag is .*, expected a"):
        read("--flag", text, hint)


def test_several_values_of_a_flag() -> None:
    settings = settings_of(Example)
    assert settings["count"].read_several("0,1,1e1,1") == [0, 1, 10]
    assert settings["text"].read_several("a, b") == ["a, b"]
    solvers = settings["solver"].read_several("nesterov:momentum=0.5,learning_rate=0.1,newton")
    assert solvers == ["nesterov:learning_rate=0.1,momentum=0.5", "newton"]


@pytest.mark.parametrize(
    "base",
    ["solvers.Solver", "differentiation.Differentiation", "starts.Start", "steps.Steps",
     "regularizers.Regularizer"],
)  # fmt: skip
def test_every_part_of_the_library_has_a_name(base: str) -> None:
    part = Part(f"equipool.{base}")
    kinds = set(part.classes().values())
    exported = {getattr(equipool, name) for name in equipool.__all__}
    concrete = {one for one in exported if isinstance(one, type) and one in kinds}
    assert kinds - {ZeroStart} == concrete  # the default has a name, too


def test_equal_parts_are_equal_texts() -> None:
    part = Part("equipool.solvers.Solver")
    assert part.check("nesterov:momentum=0.90,learning_rate=1e-1") == "nesterov:learning_rate=0.1"


def test_a_part_takes_what_the_layer_supplies() -> None:
    start = Part("equipool.starts.Start").build("learned:value=2", out_channels=4)
    assert torch.equal(start.y, torch.full((4,), 2.0))


def test_parts_in_parts() -> None:
    part = Part("equipool.solvers.Solver")
    text = part.check("newton:after=(nesterov:momentum=0.5),num_steps=2")
    assert text == "newton:after=(nesterov:momentum=0.5),num_steps=2"
    assert part.build(text).after.momentum == 0.5
    with pytest.raises(ValueError, match="after is 'lu', expected one of exact, gradient-descent"):
        part.check("newton:after=lu")
