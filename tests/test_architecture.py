"""Who may import whom, as docs/architecture.md says."""

import ast
import re

import pytest

from python_blocks import ROOT

PACKAGE = ROOT / "src" / "equipool"
OUTER = {"closed_form", "demo", "pyg"}  # made of the package, and no part of it

MAY_IMPORT = {
    "ops": set(),
    "checks": set(),
    "reference": set(),
    "scalars": set(),
    "scalings": set(),
    "solution": set(),
    "sets": {"ops"},
    "layouts": {"checks", "ops", "sets"},
    "starts": {"sets"},
    "potentials": {"ops", "sets"},
    "regularizers": {"scalars"},
    "solvers": {"scalars"},
    "energy": {"potentials", "regularizers", "scalings"},
    "differentiation": {"solvers"},
}


def room(name: str) -> str | None:
    """The room that `equipool.room.file` lies in; None for what is not ours."""
    package, _, rest = name.partition(".")
    return rest.partition(".")[0] if package == "equipool" else None


def imported_modules(path):
    """Full names of what a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(name):
    file, folder = PACKAGE / f"{name}.py", PACKAGE / name
    return [file] if file.exists() else sorted(folder.rglob("*.py"))


ROOMS = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()} - {
    "__init__",
    "__pycache__",
}


@pytest.mark.parametrize("name", sorted(ROOMS - OUTER))
def test_imports_point_one_way(name):
    allowed = MAY_IMPORT.get(name, ROOMS - OUTER) | {name}
    for path in files_of(name):
        found = {room(module) for module in imported_modules(path)} - {None}
        assert found <= allowed, f"{path.relative_to(PACKAGE)} imports {sorted(found - allowed)}"


def test_only_the_layer_puts_everything_together():
    assert ROOMS - OUTER - set(MAY_IMPORT) == {"aggregation"}


def test_operations_know_no_modules():
    for path in files_of("ops"):
        assert not [name for name in imported_modules(path) if name.startswith("torch.nn")], path


def test_only_the_adapter_imports_pytorch_geometric():
    importers = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith("torch_geometric") for name in imported_modules(path))
    }
    assert importers == {"pyg.py"}


def test_the_page_names_every_room():
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = set(re.findall(r"^\| `([a-z_]+)(?:\.py|/)` \|", page, re.MULTILINE))
    assert table == ROOMS
