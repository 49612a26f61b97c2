"""Tables and pictures of a trained network, which a task adds to its metrics."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from equipool.training.checkpoint import naming, to_json, write_atomically

INDEX = "examination.json"

# A float is a fraction, shown in percent; an int is a count.
Cell = str | int | float


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row names it."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def texts(self) -> list[list[str]]:
        """The rows as text."""
        return [[cell_text(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True)
class Picture:
    """A PNG picture and its caption."""

    caption: str
    png: bytes


@dataclass(frozen=True)
class Gallery:
    """Pictures that belong together."""

    title: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Examination:
    """Tables and pictures; false if there are none."""

    tables: tuple[Table, ...] = ()
    galleries: tuple[Gallery, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tables or self.galleries)


def cell_text(cell: Cell) -> str:
    """A cell as text.

    Example:
        >>> cell_text(0.256), cell_text(1200), cell_text("all")
        ('25.6 %', '1,200', 'all')
    """
    if isinstance(cell, float):
        return f"{100 * cell:.1f} %"
    return f"{cell:,}" if isinstance(cell, int) else cell


def examination_folder(run: str | Path, which: str) -> Path:
    """The folder in a run for the examination of its `"best"` or `"last"` checkpoint."""
    return Path(run) / f"examination-{which}"


def write_examination(examination: Examination, folder: Path) -> None:
    """Write it to a folder, pictures as files, and replace what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    with naming(folder):
        folder.mkdir(parents=True)
    galleries = []
    for number, gallery in enumerate(examination.galleries, start=1):
        entries = []
        for place, picture in enumerate(gallery.pictures, start=1):
            file = f"{number}-{place:02}.png"
            write_atomically(folder / file, picture.png)
            entries.append({"caption": picture.caption, "file": file})
        galleries.append({"title": gallery.title, "pictures": entries})
    content = {"tables": [asdict(table) for table in examination.tables], "galleries": galleries}
    write_atomically(folder / INDEX, to_json(content))


def read_examination(folder: Path) -> Examination:
    """Read what `write_examination` wrote; empty if there is none."""
    file = folder / INDEX
    if not file.exists():
        return Examination()
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        tables = (
            Table(one["title"], tuple(one["headings"]), tuple(map(tuple, one["rows"])))
            for one in content["tables"]
        )
        galleries = []
        for one in content["galleries"]:
            read = (
                (own["caption"], (folder / own["file"]).read_bytes()) for own in one["pictures"]
            )
            galleries.append(Gallery(one["title"], tuple(Picture(*own) for own in read)))
        return Examination(tuple(tables), tuple(galleries))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is not an examination: {error}") from error
