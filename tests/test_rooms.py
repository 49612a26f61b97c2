"""Imports point one way, and the core needs torch alone."""

import ast
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import equipool
from equipool.cli import make_app
from python_blocks import ROOT

SOURCE = Path(equipool.__file__).parent

# What each room of the core may import of the others. A new room belongs in here.
MAY_IMPORT = {
    "private_torch": set(),
    "layer_identity": set(),
    "ops": {"private_torch"},
    "checks": set(),
    "config": set(),
    "inference": set(),
    "steps": {"checks", "private_torch"},
    "learned_scalars": {"ops"},
    "objective": set(),
    "solver_state": set(),
    "reference": set(),
    "sets": {"checks", "ops"},
    "starts": {"sets"},
    "potentials": {"checks", "objective", "ops", "private_torch", "learned_scalars", "sets"},
    "regularizers": {"checks", "objective", "ops", "learned_scalars"},
    "energy": {"objective", "ops", "potentials", "regularizers", "sets"},
    "solvers": {"checks", "objective", "ops", "solver_state", "learned_scalars"},
    "descent": {"objective", "ops", "solver_state", "solvers", "steps"},
    "linear_solvers": {"checks", "objective", "ops", "solver_state"},
    "spectrum": {"linear_solvers", "objective"},
    "differentiation": {
        "checks", "descent", "linear_solvers", "objective", "ops", "private_torch", "solver_state",
    },
    "distributed": {
        "checks", "layer_identity", "objective", "ops", "potentials", "sets", "starts",
    },
    "solution": {"descent", "objective", "sets", "steps"},
    "cuda": {"private_torch"},
    "replay": {
        "cuda", "descent", "layer_identity", "ops", "potentials", "private_torch", "solver_state",
        "sets", "steps",
    },
}  # fmt: skip
PARTS = set(MAY_IMPORT) - {"reference"}
MAY_IMPORT["aggregation"] = PARTS
MAY_IMPORT["functional"] = {"ops", "sets"}
MAY_IMPORT["pooling"] = PARTS | {"aggregation"}
MAY_IMPORT["recipes"] = PARTS
# What stands on the layer.
MAY_IMPORT["live"] = PARTS | {"aggregation"}
MAY_IMPORT["large"] = PARTS | {"aggregation"}
for room in ("diagnostics", "leave_one_out", "posterior"):
    MAY_IMPORT[room] = PARTS | {"aggregation"}
MAY_IMPORT["public"] = set(MAY_IMPORT) - {"reference"}
MAY_IMPORT["__init__"] = {"public"}
MAY_IMPORT["pyg"] = PARTS | {"aggregation", "functional", "pooling", "__init__"}
MAY_IMPORT["torchmil"] = PARTS | {"aggregation", "leave_one_out", "pooling", "recipes"}

# Rooms around the core, and what each may import of the others around it. Each may import anything
# of the core, and the core nothing of them.
SMALL = {"environment", "extras", "files", "settings", "tables"}
MAY_IMPORT_AROUND = {
    "environment": set(),
    "extras": set(),
    "files": set(),
    "settings": set(),
    "tables": set(),
    "baselines": SMALL,
    "training": SMALL,
    "estimators": SMALL | {"baselines", "training"},
    "experiments": SMALL | {"baselines", "estimators", "training"},
    "report": SMALL | {"baselines", "experiments", "training"},
}
MAY_IMPORT_AROUND["explore"] = SMALL | {"baselines", "estimators", "training"}
BELOW_THE_COMMANDS = set(MAY_IMPORT_AROUND)
MAY_IMPORT_AROUND["cli"] = BELOW_THE_COMMANDS
MAY_IMPORT_AROUND["__main__"] = {"cli"}
AROUND = set(MAY_IMPORT_AROUND)

# Packages that one room alone may import, beside torch.
THIRD_PARTIES = {
    "ops": {"numba", "numpy", "triton"},
    "pyg": {"torch_geometric"},
    "torchmil": {"torchmil"},
}


def room_of(path):
    """`potentials/resnet.py` is in the room `potentials`."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_names(path):
    """Full names of everything a file imports, inside functions too."""
    package = ("equipool", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def rooms_imported(path):
    for name in imported_names(path):
        first, *rest = name.split(".")
        if first == "equipool":
            known = rest and (rest[0] in MAY_IMPORT or rest[0] in AROUND)
            yield rest[0] if known else "__init__"


def packages_imported(path):
    return {name.split(".")[0] for name in imported_names(path)} - {"equipool"}


AROUND_THE_CORE = [path for path in sorted(SOURCE.rglob("*.py")) if room_of(path) in AROUND]
CORE = [path for path in sorted(SOURCE.rglob("*.py")) if room_of(path) not in AROUND]
each_file = pytest.mark.parametrize("path", CORE, ids=[str(p.relative_to(SOURCE)) for p in CORE])


@each_file
def test_imports_point_one_way(path):
    room = room_of(path)
    assert room in MAY_IMPORT, f"say in MAY_IMPORT what {room} may import"
    outside = set(rooms_imported(path)) - {room} - MAY_IMPORT[room]
    assert not outside, f"{room} imports {sorted(outside)}"


@pytest.mark.parametrize("room", sorted(AROUND))
def test_the_rooms_around_the_core_point_one_way(room):
    for path in AROUND_THE_CORE:
        if room_of(path) == room:
            outside = set(rooms_imported(path)) & AROUND - {room} - MAY_IMPORT_AROUND[room]
            assert not outside, f"{path.relative_to(SOURCE)} imports {sorted(outside)}"


@each_file
def test_the_core_needs_torch_alone(path):
    allowed = {"torch", *sys.stdlib_module_names, *THIRD_PARTIES.get(room_of(path), ())}
    assert not packages_imported(path) - allowed


@pytest.mark.parametrize("rule", [MAY_IMPORT, MAY_IMPORT_AROUND], ids=["core", "around"])
def test_the_rule_itself_has_no_circle(rule):
    seen = set()
    remaining = dict(rule)
    while remaining:
        ready = {room for room, others in remaining.items() if others <= seen}
        assert ready, f"a circle among {sorted(remaining)}"
        seen |= ready
        for room in ready:
            del remaining[room]


def test_operations_see_no_modules():
    for path in SOURCE.joinpath("ops").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        names |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        assert not names & {"Module", "Parameter"}, path.name


def test_the_readers_of_imports_see_them():
    """The rules above would hold of anything if nothing were read."""
    assert {"checks", "ops"} <= set(rooms_imported(SOURCE / "sets.py"))
    assert "potentials" in set(rooms_imported(SOURCE / "energy.py"))
    assert "torch_geometric" in packages_imported(SOURCE / "pyg" / "adapter.py")
    assert len(CORE) > 15


def test_the_page_names_every_room():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = set(re.findall(r"^\| `([a-z_]+)(?:\.py|/)` \|", page, re.MULTILINE))
    rooms = {room_of(path) for path in SOURCE.rglob("*.py")}
    assert table == rooms - {"__init__", "__main__"}


def files_of_walk(walk):
    """The files that the page names in a walk."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    steps = re.search(rf"<!-- walk: {walk} -->(.*?)<!-- end -->", page, re.DOTALL)[1]
    return set(re.findall(r"`([a-z_/]+\.py)`", steps))


def files_run(call):
    """The files of the package whose functions run in a call."""
    seen = set()
    sys.setprofile(lambda frame, event, argument: seen.add(frame.f_code))
    try:
        call()
    finally:
        sys.setprofile(None)
    codes = {code.co_filename for code in seen if code.co_name != "<module>"}
    return {str(Path(name).relative_to(SOURCE)) for name in codes if name.startswith(str(SOURCE))}


def test_the_walk_to_the_operation_is_the_one_that_is_taken():
    layer, x = equipool.EquilibriumAggregation(3, 8), torch.ones(2, 3)
    told, run = files_of_walk("forward"), files_run(lambda: layer(x, torch.zeros(2).long()))
    assert len(told) >= 5
    assert told <= run
    assert len(run) <= 18


def test_the_walk_to_the_checkpoint_is_the_one_that_is_taken(tmp_path):
    """All files of the commands, the experiments and the engine that run, from the command on."""
    flags = {"steps": 2, "batch-size": 4, "set-size": 5, "width": 4, "head-width": 4, "chunk": 1,
             "evaluation-sets": 50, "device": "cpu", "threads": 1,
             "out": tmp_path / "run"}  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    for module in ("experiments.median", "cli.train"):  # importing is not part of the walk
        import_module(f"equipool.{module}")
    command = ["train", "median", *words]
    run = files_run(lambda: make_app(command)(command, standalone_mode=False))
    assert (tmp_path / "run" / "checkpoints").exists()
    told = files_of_walk("train")
    assert told == {name for name in run if name.startswith(("cli/", "experiments/", "training/"))}
    assert len(told) <= 10
