import itertools
import re

import pytest
from records import record, write_folder, write_records
from typer.testing import CliRunner

from equipool import extras
from equipool.cli import make_app
from equipool.report import read_runs, summarize, write_page
from equipool.report.groups import group_runs
from equipool.report.pictures import draw_curves, draw_inner, draw_sizes, inner_lines, styles

INNER = {"residual": 0.1, "aux_loss": 0.2, "learning_rate": 0.3, "momentum": 0.4,
         "regularizer_weight": 0.5, "converged": 0.0}  # fmt: skip


def point(step, **changed):
    times = {"step": step, "seconds": 1.2 * step, "training_seconds": 1.0 * step}
    return times | {"loss": 1.0, "skipped": 2, "spikes": 1, "inner": {"pool": INNER}} | changed


def test_a_directory_and_its_record_are_one_run(tmp_path):
    made = record([2.0, 1.0], "equilibrium")
    write_folder(tmp_path / "run", made, [point(10), point(20)])
    found = read_runs([tmp_path / "run", tmp_path / "run" / "record.json", tmp_path / "run"])
    assert len(found) == 1
    assert found[0].name == "run"
    assert [entry["step"] for entry in found[0].points] == [10, 20]
    assert found[0].num_parameters == 1234


def test_a_run_in_its_middle(tmp_path):
    made = record([2.0, 1.5], "equilibrium")
    write_folder(tmp_path / "run", made, [point(10), point(20), point(25)], record=False)
    (run,) = read_runs([tmp_path])
    assert (run.complete, run.steps, run.final, run.pieces) == (False, 25, 1.5, 1)
    assert (run.skipped, run.spikes, run.training_seconds) == (2, 1, 25.0)
    assert [piece["hardware"] for piece in run.ran_on] == [made.hardware]
    assert run.num_parameters is None
    assert run.best["step"] == 20


def test_directories_of_records_are_read(tmp_path):
    write_records(tmp_path, record([1.0]), record([2.0], seed=1))
    assert [run.name for run in read_runs([tmp_path])] == ["0", "1"]


def test_a_setting_that_is_newer_than_the_run_is_at_its_default(tmp_path):
    old, new = record([1.0], "equilibrium"), record([1.0], "equilibrium", seed=1)
    old.config["fields"].pop("potential_dropout", None)
    new.config["fields"]["potential_dropout"] = 0.0
    first, second = read_runs(write_records(tmp_path, old, new))
    assert first.config["fields"] | {"seed": 1} == second.config["fields"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1]", "is not the record"), ("{}", "its format is None"), ("no", "is not the record"),
     ('{"format": 1}', "is not the record of a run")],
)  # fmt: skip
def test_what_is_no_record_is_refused(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_runs([tmp_path])


def test_runs_that_are_deeper_are_pointed_to(tmp_path):
    for run in ("a/1", "a/2", "b/steps/1"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "config.json").write_text("{}")
        (tmp_path / run / "record.json").write_text("{}")
    for records in ("c", "b/capacity"):
        (tmp_path / records).mkdir()
        (tmp_path / records / "1.json").write_text("{}")
    places = ", ".join(str(tmp_path / name) for name in ("a", "b/capacity", "b/steps", "c"))
    with pytest.raises(
        ValueError, match=re.escape(f"no records; there are some in {places}") + "$"
    ):
        read_runs([tmp_path])


def test_what_a_report_does_not_read_is_said(tmp_path):
    write_records(tmp_path, record([1.0], "sum"))
    write_folder(tmp_path / "own", record([2.0], "sum"), [])
    (tmp_path / "own" / "notes").mkdir()  # belongs to a run that is read
    (tmp_path / "own" / "notes" / "notes.json").write_text("{}")
    (tmp_path / "sweep" / "run").mkdir(parents=True)
    (tmp_path / "sweep" / "run" / "config.json").write_text("{}")
    words = ["report", str(tmp_path), "--out", str(tmp_path / "page.html")]
    done = CliRunner().invoke(make_app(), words)
    assert done.exit_code == 0, done.output
    said = done.output.replace("\n", "")
    assert f"Skipped deeper directories: {tmp_path / 'sweep'}" in said
    assert "notes" not in said
    words[1] = str(tmp_path / "0.json")
    assert "Skipped" not in CliRunner().invoke(make_app(), words).output


def test_nothing_to_report_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        read_runs([tmp_path])
    write_folder(tmp_path / "run", record([1.0]), [], record=False)
    (tmp_path / "run" / "log.jsonl").unlink()
    with pytest.raises(ValueError, match="none of the runs has been evaluated"):
        read_runs([tmp_path])


def test_tasks_are_not_mixed_and_must_be_known(tmp_path):
    files = write_records(tmp_path, record([1.0]), record([1.0], task="mode"))
    with pytest.raises(ValueError, match="the tasks median, mode, expected one task"):
        read_runs(files)
    with pytest.raises(ValueError, match="the task 'mode', expected one of"):
        summarize(read_runs(files[1:]))


@pytest.fixture
def runs(tmp_path):
    """Two methods and two sizes; an equilibrium run with its log."""
    write_folder(tmp_path / "run", record([2.0, 1.0], "equilibrium", skipped=7), [point(10)])
    others = (record([3.0, 2.5]), record([3.0, 2.25], embedding=16))
    return read_runs([tmp_path / "run", *write_records(tmp_path, *others)])


def test_the_page_tells_the_numbers_and_needs_nothing_else(runs, tmp_path):
    file = tmp_path / "new" / "page.html"
    write_page(runs, file)
    html = file.read_text()
    for row in summarize(runs).rows:
        assert "".join(f"<td>{cell}</td>" for cell in row) in html
    # nothing is loaded: pictures are in the page, and there is no address at all
    sources = re.findall(r"src=\"([^\"]{30})", html)
    assert len(sources) == html.count("<img") == 3
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in html
    assert not re.search(r"<(script|link|iframe)", html)
    assert "url(" not in html
    for told in ("training.steps", "torch 2.13.0", "abacus", "<td>7</td>", "occurred in run."):
        assert told in html
    assert "task.aggregation, task.embedding and the seed" in html


def test_pictures_are_drawn_only_of_what_is_there(tmp_path):
    runs = read_runs(write_records(tmp_path, record([2.0, None]), record([1.0, 2.0], "max")))
    write_page(runs, tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    assert html.count("<img") == 1
    assert "There is nothing to draw" in html
    assert "There were none." in html
    assert "not finite" in html


def pixels(picture):
    from io import BytesIO

    from matplotlib.image import imread

    return imread(BytesIO(picture))


def test_pictures_show_the_data(runs):
    """Another number gives another picture."""
    groups = group_runs(runs)
    before = pixels(draw_curves(groups)), pixels(draw_sizes(groups))
    for run in runs:
        run.curve[0]["metrics"]["mse"] *= 1.5
        run.curve[1]["metrics"]["mse"] *= 0.5 if run.config["fields"]["embedding"] == 8 else 2
    after = pixels(draw_curves(groups)), pixels(draw_sizes(groups))
    for old, new in zip(before, after, strict=True):
        assert (old != new).any()


def test_inner_statistics_are_those_of_the_log(runs):
    (line,) = inner_lines(group_runs(runs))
    assert line.label == "equilibrium, embedding 8"
    assert line.steps == [10]
    assert line.entries == [INNER]
    assert pixels(draw_inner([line])).shape[0] > 100


def test_layers_are_told_apart_where_there_are_several(tmp_path):
    two = point(10, inner={"first": INNER, "second": INNER})
    write_folder(tmp_path / "run", record([1.0]), [two, point(20, inner={"first": INNER})])
    lines = inner_lines(group_runs(read_runs([tmp_path / "run"])))
    assert [line.label for line in lines] == [f"sum, embedding 8, {n}" for n in ("first", "second")]
    assert lines[1].entries == [INNER, {}]
    draw_inner(lines)


def test_styles_do_not_repeat_soon():
    found = styles([str(number) for number in range(28)] * 2)
    assert len(found) == len(set(found.values())) == 28


def test_a_missing_extra_says_what_to_install(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "jinja2" else object())
    with pytest.raises(ImportError, match=r'needs jinja2. Run: pip install "equipool\[report\]"'):
        write_page(runs, tmp_path / "page.html")


def test_millions_of_steps_have_labels_that_do_not_overlap(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *place, **options: drawn.append(self))
    made = record([2.0, 1.0])
    for entry, step in zip(made.curve, (500_000, 1_000_000), strict=True):
        entry["step"] = step
    draw_curves(group_runs(read_runs(write_records(tmp_path, made))))
    (figure,) = drawn
    figure.canvas.draw()
    labels = [label for label in figure.axes[0].get_xticklabels() if label.get_text()]
    assert "1M" in [label.get_text() for label in labels]
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
