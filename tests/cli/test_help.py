"""The help: quick, grouped, and with the types and defaults that people expect."""

import re
import subprocess
import sys

import pytest

from equipool.cli import COMMANDS
from equipool.cli.flags import flags_of
from equipool.experiments.presets import EXPERIMENTS

TASK_COMMANDS = [
    *((command, task) for command in ("train", "sweep") for task in EXPERIMENTS),
    ("ablate", "molecules"),
]
CALLS = [(), *((name,) for name in COMMANDS), *TASK_COMMANDS]
WITHOUT_TORCH = CALLS

RUN = """
import sys
from equipool.cli import main
sys.argv[0] = "equipool"
try:
    main()
finally:
    print([name for name in ("torch", "numpy", "lightning") if name in sys.modules])
"""


@pytest.fixture
def shown(equipool, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words):
        done = equipool(*words, "--help")
        return done.output

    return call


@pytest.mark.parametrize("call", [(), ("train",), ("train", "median"), ("sweep", "molecules"),
                                  ("predict",), ("evaluate",), ("report",)])  # fmt: skip
def test_the_help_imports_neither_torch_nor_numpy(call):
    command = [sys.executable, "-c", RUN, *call, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: ")
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("call", CALLS)
def test_the_first_line_is_short_and_nothing_is_cut(shown, call):
    text = shown(*call)
    first = text.split("\n\n")[1].strip("\n")
    assert 10 < len(first) < 80
    assert "\n" not in first
    assert first.endswith(".")
    for odd in ("<bool>", "<str>", "<path>", "VALUE", "\u2011", "\u00a0", "$"):
        assert odd not in text.replace("$EQUIPOOL_DATA", "")


def test_every_command_is_listed_with_its_first_line(shown):
    text = shown()
    for name, (_, about) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(about)}$", text, re.MULTILINE)


@pytest.mark.parametrize("call", TASK_COMMANDS)
def test_flags_are_grouped_with_their_types_and_defaults(shown, call):
    text = shown(*call)
    headings = [line[:-1] for line in text.splitlines() if re.match(r"[A-Z][\w ]+:$", line)]
    assert headings == ["Task", "Equilibrium layer", "Training", "Run", "Options"]
    entries = dict(
        re.findall(r"^  (--\S+(?: \S+)?)\s+((?:.*\n(?!  -|\n|\Z))*.*)", text, re.MULTILINE)
    )
    shown_flags = [flag for flag in flags_of(call[1]) if not flag.hidden]
    assert len(shown_flags) > 50
    for flag in shown_flags:
        entry = " ".join(entries[f"{flag.option} {flag.reader.metavar}"].split())
        assert len(entry) > 5
        assert flag.default is None or entry.endswith(f"[default: {flag.default}]")
    assert "--seed INT" in entries
    folded = " ".join(text.split())
    for name, preset in EXPERIMENTS[call[1]].presets.items():
        assert f"{name} {preset.about}" in folded


def test_parameters_of_inner_parts_are_accepted_though_the_help_leaves_them_out(shown):
    assert "--solver.solver.momentum" not in shown("train", "median")
    assert any(flag.option == "--solver.solver.momentum" for flag in flags_of("median"))
