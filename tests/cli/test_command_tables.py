"""Tables that commands print."""

import pytest
from rich.console import Console

from equipool.cli import console
from equipool.report import Table

TABLE = Table(
    "errors",
    ("method", "mean of the errors", "deviation of the errors"),
    (("equilibrium aggregation", "1.33e-07", "2.62e-08"), ("attention", "8.17e-06", "9.09e-07")),
)


@pytest.mark.parametrize("width", [120, 40, 30])
def test_no_digit_is_cut_off_in_a_narrow_terminal(width, monkeypatch, capsys):
    monkeypatch.setattr(console, "make_console", lambda: Console(width=width))
    console.print_table(TABLE.headings, TABLE.texts(), TABLE.title)
    printed = capsys.readouterr().out
    for row in TABLE.rows:
        assert all(number in printed for number in row[1:])
    assert max(map(len, printed.splitlines())) <= width
    assert "\u2026" not in printed  # nothing is left out
    assert printed.count("attention") == (2 if width == 30 else 1)  # in each of the tables
