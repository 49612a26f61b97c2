import pytest

from equipool import extras
from equipool.demo.__main__ import NEEDED, main


@pytest.mark.parametrize(
    ("absent", "expected"),
    [
        ({"rich"}, 'needs rich. Run: pip install "equipool[cli]"'),
        ({"matplotlib"}, 'needs matplotlib. Run: pip install "equipool[report]"'),
        ({"jinja2", "rich"}, 'needs jinja2 and rich. Run: pip install "equipool[report,cli]"'),
    ],
)
def test_a_missing_extra_says_what_to_install(absent, expected, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in absent else object())
    assert main(["--out", str(tmp_path / "out")]) == 1
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_nothing_is_missing_here():
    assert extras.advice("The demonstration", NEEDED) is None


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--seconds", "0"], ["--seconds", "nan"]])
def test_an_empty_budget_is_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_steps_and_seconds_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        main(["--steps", "2", "--seconds", "2"])
    assert "not allowed with" in capsys.readouterr().err
