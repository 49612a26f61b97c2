"""What is shown while molecules are prepared."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec

from equipool.bars import columns
from equipool.experiments.molecules.data.pieces import Piece


def say(text: str) -> None:
    """A message; beside the output, which may be a table."""
    print(text, file=sys.stderr, flush=True)


def shown(pieces: Iterable[Piece], title: str, num_rows: int) -> Iterator[Piece]:
    """The pieces, with a bar for the rows that are done, where rich is installed."""
    if find_spec("rich") is None:
        say(f"{title}: {num_rows:,} rows")
        yield from pieces
        return
    from rich import progress
    from rich.console import Console

    with progress.Progress(*columns(), console=Console(stderr=True), refresh_per_second=4) as bars:
        bar = bars.add_task(title, total=num_rows)
        for piece in pieces:
            yield piece
            bars.update(bar, advance=piece.num_rows)
