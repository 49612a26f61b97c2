"""Tables that commands print."""

from equipool.commands.words import print_summary
from equipool.report import Summary

SUMMARY = Summary(
    "errors",
    ("method", "mean of the errors", "deviation of the errors"),
    (("equilibrium aggregation", "1.33e-07", "2.62e-08"), ("attention", "8.17e-06", "9.09e-07")),
)


def test_no_digit_is_cut_off_in_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    print_summary(SUMMARY)
    printed = capsys.readouterr().out
    for row in SUMMARY.rows:
        assert all(number in printed for number in row[1:])
    assert max(map(len, printed.splitlines())) <= 40
    assert "…" not in printed
