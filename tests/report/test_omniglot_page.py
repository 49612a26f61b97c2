"""The page about counting characters, and the script that makes its tables and pictures."""

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from counting_records import counting
from page_script import load_script, page_text, pictures_of, rows
from records import write_records
from typer.testing import CliRunner

import tiny_omniglot as tiny
from command_lines import check_flags, command_lines
from equipool.cli import make_app
from equipool.commands import sweep
from equipool.report import read_runs
from equipool.report.alone import untimed
from equipool.report.recorded import recorded
from equipool.tasks.character_pictures import png_of
from equipool.training.config import FREE, chosen_config
from equipool.training.examination import (
    Examination,
    Gallery,
    Picture,
    Table,
    examination_folder,
    write_examination,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = page_text("omniglot")
COMMANDS = command_lines(PAGE)
RECORDS = sorted((ROOT / "records" / "omniglot").glob("*.json"))
needs_records = pytest.mark.skipif(not RECORDS, reason="there are no records of the task")
needs_page = pytest.mark.skipif(not PAGE, reason="there is no page of the task")


def made(
    test,
    aggregation="sum",
    *,
    validation=None,
    seconds=1.0,
    learning_rate=1e-3,
    batch_size=8,
    precision="32-true",
    seed=0,
):
    """A record with these accuracies on test characters, half of them on training characters, and
    1 / k of them on test sets of k characters; there is no set of nine. `seconds` are of a step."""
    record = counting(test if validation is None else validation, test, aggregation, seed)
    record.config["fields"]["batch_size"] = batch_size
    record.config["training"] |= {"learning_rate": learning_rate, "precision": precision}
    for entry, accuracy in zip(record.curve, test, strict=True):
        shares = {f"test_accuracy_{k}": accuracy / k for k in range(1, 11) if k != 9}
        entry["metrics"] |= shares | {"train_accuracy": accuracy / 2}
        entry["training_seconds"] = entry["step"] * seconds
    return replace(record, training_seconds=record.steps * seconds)


@pytest.fixture
def script():
    return load_script("omniglot")


@pytest.fixture
def runs(tmp_path):
    return read_runs(
        write_records(
            tmp_path,
            made([0.125, 0.25, 0.375], validation=[0.25, 0.75, 0.5]),
            made([0.25, 0.375, 0.625], validation=[0.25, 0.5, 0.75], seed=1),
            made([0.5, 0.5, 0.75], "equilibrium", validation=[0.1] * 3, learning_rate=3e-4),
        )
    )


@pytest.fixture
def alone(tmp_path):
    """Of the same settings, but for the last."""
    (tmp_path / "alone").mkdir()
    return read_runs(
        write_records(
            tmp_path / "alone",
            made([0.5], seed=7, seconds=0.5),
            made([0.5, 0.5], "equilibrium", seconds=2.0),
            made([0.5, 0.5], "equilibrium", seconds=0.25, batch_size=1024, precision="bf16-mixed"),
        )
    )


@pytest.fixture
def groups(script, runs):
    return script.grouped(runs)


def test_the_results_are_those_of_the_records(script, groups):
    best, other = rows(script.results(groups))
    assert best["method"] == "equilibrium"  # by the test, not by the validation
    assert best["learning rate"] == "0.0003"
    assert best["test accuracy"] == "75.0 %"  # one seed has no deviation
    assert other == {
        "method": "sum",
        "learning rate": "0.001",
        "seeds": "2",
        "test accuracy": "50.0 ± 17.7 %",
        "train accuracy": "25.0 ± 8.8 %",
        "test, at the best validation": "43.8 ± 26.5 %",  # 0.25 and 0.625
        "sets seen": "240",  # 30 steps of 8
        "seconds of training": "30",
        "parameters": "1,234",
        "spikes": "0",
        "skipped": "0",
    }


def test_sums_and_means_over_the_seeds(script, tmp_path):
    seeds = (
        replace(made([0.5], seconds=1.0), spikes=1, skipped=2),
        replace(made([0.5], seconds=3.0, seed=1), spikes=4, skipped=8),
    )
    (row,) = rows(script.results(script.grouped(read_runs(write_records(tmp_path, *seeds)))))
    assert (row["spikes"], row["skipped"], row["seconds of training"]) == ("5", "10", "20")


def test_sets_are_seen_up_to_the_last_evaluation(script, tmp_path):
    stopped = replace(made([0.5]), steps=19)
    (row,) = rows(script.results(script.grouped(read_runs(write_records(tmp_path, stopped)))))
    assert row["sets seen"] == "80"  # 10 steps of 8


def test_best_first_is_by_the_last_step(script, tmp_path):
    records = made([0.75, 0.25], validation=[0.9, 0.1]), made([0.5, 0.5], "attention")
    found = script.grouped(read_runs(write_records(tmp_path, *records)))
    assert [group.method for group in found] == ["attention", "sum"]


def test_methods_of_one_name_are_told_apart(script, tmp_path):
    records = made([0.5]), made([0.25], learning_rate=0.01)
    groups = script.grouped(read_runs(write_records(tmp_path, *records)))
    assert [group.method for group in groups] == [
        "sum, learning_rate 0.001",
        "sum, learning_rate 0.01",
    ]


def test_an_accuracy_that_is_not_finite_is_no_accuracy(script):
    assert script.percent([0.5, None]) == "not finite"


def test_seconds_to_a_level(script, groups):
    """A run is evaluated after 10, 20 and 30 seconds."""
    best, other = rows(script.times(groups))
    levels = ["20 %", "25 %", "30 %", "35 %", "40 %", "45 %", "50 %", "60 %", "70 %"]
    assert list(best) == ["method", *levels]
    assert list(best.values()) == ["equilibrium", *["10"] * 7, "30", "30"]
    # 20 and 10 seconds, 30 and 20; one of them never has 40 %
    assert list(other.values()) == ["sum", "15", "15", "25", "25", *["-"] * 5]


def test_right_answers_by_number(script, groups):
    best, other = rows(script.by_number(groups))
    assert list(best) == ["method", *map(str, range(1, 11))]
    assert (best["1"], best["2"], best["9"], best["10"]) == ("75.0", "37.5", "-", "7.5")
    assert (other["1"], other["10"]) == ("50.0", "5.0")  # of 0.375 and 0.625


def test_seconds_are_those_of_a_run_alone(script, runs, alone):
    """Of batch size 8, not of 1,024."""
    best, other = rows(script.results(script.grouped(script.timed(runs, alone))))
    assert best["seconds of training"] == "60"
    assert other["seconds of training"] == "15"


def test_every_run_needs_a_run_alone(script, runs, alone):
    with pytest.raises(ValueError, match="no run alone has the settings of 2"):
        script.blocks(runs, alone[:1])


def test_where_the_time_is_taken(script, alone):
    """The start is not in it where there are two evaluations."""
    late = [
        entry | {"training_seconds": entry["training_seconds"] + 99} for entry in alone[1].curve
    ]
    assert script.seconds_a_step(replace(alone[1], curve=late)) == 2.0
    assert script.steps_before(alone[1]) == 10
    assert script.seconds_a_step(alone[0]) == 0.5
    assert script.steps_before(alone[0]) == 0


def test_throughput(script, alone):
    small, equilibrium, large = rows(script.throughput(alone[::-1]))
    assert small == {
        "method": "sum",
        "batch size": "8",
        "precision": "32-true",
        "timed steps": "1 to 10",
        "ms a step": "500.00",
        "sets a second": "16",
    }
    assert list(equilibrium.values())[:4] == ["equilibrium", "8", "32-true", "11 to 20"]
    assert list(large.values()) == [
        "equilibrium", "1,024", "bf16-mixed", "11 to 20", "250.00", "4,096",
    ]  # fmt: skip


def test_what_it_ran_on(script, runs):
    assert script.ran_on(runs) == "3 runs on abacus, torch 2.13.0."
    piece = {"hardware": {"cpu": "abacus", "gpu": "Z1"}, "versions": {"torch": "2.11.0"}}
    other = replace(runs[0], ran_on=[piece])
    assert script.ran_on([other, *runs]) == "4 runs on Z1 and abacus, torch 2.11.0 and 2.13.0."


@needs_page
def test_the_page_is_brought_up_to_date(script, runs, alone):
    found = script.blocks(runs, alone)
    new = script.refresh(PAGE, found)
    for content in found.values():
        assert f"-->\n\n{content}\n\n<!-- end -->" in new
    assert "| sum | 0.001 | 2 | 50.0 ± 17.7 % |" in new
    assert " | 15 | 1,234 |" in new  # seconds of a run alone
    assert script.refresh(new, found) == new
    assert re.sub(r"\|.*\||3 runs on .*", "", new).split() == (
        re.sub(r"\|.*\||\d+ runs on .*", "", PAGE).split()
    )


@pytest.fixture
def folders(script, tmp_path, monkeypatch):
    """The script reads records from here, a run and one alone, and writes to here."""
    for name in ("RECORDS", "FIGURES"):
        monkeypatch.setattr(script, name, tmp_path)
    monkeypatch.setattr(script, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text("<!-- generated: results -->\n<!-- end -->\n")
    shared, alone = made([0.25, 0.5], seconds=9.0), made([0.1, 0.1], seed=3, seconds=2.0)
    for folder, one in {"omniglot": shared, "omniglot-speed": alone}.items():
        (tmp_path / folder).mkdir()
        write_records(tmp_path / folder, one)
    return tmp_path


def test_all_is_made_from_the_folders(script, folders, monkeypatch):
    monkeypatch.setattr("sys.argv", ["omniglot.py"])
    given = []
    monkeypatch.setattr(script, "draw_curves", lambda groups, file: given.append(groups))
    script.main()
    page = (folders / "page.md").read_text()
    assert "| sum | 0.001 | 1 | 50.0 % | 25.0 % | 50.0 % | 160 | 40 |" in page
    assert given[0][0].runs[0].training_seconds == 40


def test_nothing_is_drawn_where_the_tables_cannot_be_made(script, folders, monkeypatch):
    shutil.rmtree(folders / "omniglot-speed")
    arguments = ["--data-dir", str(folders), "--examination", str(folders)]
    monkeypatch.setattr("sys.argv", ["omniglot.py", *arguments])
    drawn = []
    for name in ("draw_curves", "draw_sets", "draw_examination"):
        monkeypatch.setattr(script, name, lambda *some: drawn.append(some))
    with pytest.raises(ValueError, match="no run alone has the settings of 0"):
        script.main()
    assert drawn == []


class TestPictures:
    @pytest.fixture
    def figures(self, script, monkeypatch):
        """What would be saved."""
        found = []

        def keep(*_, **__):
            found.append(script.plt.gcf())
            found[-1].canvas.draw()  # which puts everything in its place

        monkeypatch.setattr(script.plt, "savefig", keep)
        return found

    def test_curves(self, script, groups, tmp_path):
        script.draw_curves(groups, tmp_path / "curves.svg")
        drawn = (tmp_path / "curves.svg").read_text()
        for told in ("equilibrium", "sum", "test_accuracy", "train_accuracy", "training steps"):
            assert told in drawn
        script.draw_curves(groups, tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_text() == drawn

    def test_curves_show_the_test_solid(self, script, runs, alone, figures, tmp_path):
        script.draw_curves(script.grouped(script.timed(runs, alone)), tmp_path / "curves.svg")
        by_step, by_second = figures[0].axes
        drawn = {(line.get_linestyle(), tuple(line.get_ydata())) for line in by_step.lines}
        assert {("-", (0.5, 0.5, 0.75)), ("--", (0.25, 0.25, 0.375))} <= drawn
        assert list(by_step.lines[0].get_xdata()) == [10, 20, 30]
        assert list(by_second.lines[0].get_xdata()) == [20, 40, 60]  # seconds of a run alone

    def test_the_legend_covers_no_curve(self, script, groups, figures, tmp_path):
        script.draw_curves(groups, tmp_path / "curves.svg")
        _, by_second = figures[0].axes
        legend = by_second.get_legend().get_window_extent()
        assert by_second.get_window_extent().x1 <= legend.x0
        assert legend.x1 <= figures[0].bbox.x1

    @pytest.fixture
    def small(self, script, tmp_path, monkeypatch):
        """The script's task, on made-up characters."""
        tiny.write_archive(tmp_path)
        monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))
        task = script.OmniglotTask(image_size=8, validation_characters=10, evaluation_sets=300)
        monkeypatch.setattr(script, "OmniglotTask", lambda: task)
        return task

    def test_example_sets(self, script, small, tmp_path):
        script.draw_sets(tmp_path / "sets.png")
        assert (tmp_path / "sets.png").read_bytes().startswith(b"\x89PNG")

    def test_example_sets_are_of_their_numbers(self, script, small, tmp_path, monkeypatch):
        seen, shown = [], []
        monkeypatch.setattr(script, "draw_set", lambda pixels, of: seen.append(of) or pixels)
        monkeypatch.setattr(script, "draw_panels", lambda panels, file: shown.append(panels))
        script.draw_sets(tmp_path / "sets.png")
        assert [len(set(of.tolist())) for of in seen] == list(range(1, 11))
        assert list(shown[0])[::9] == ["1 character", "10 characters"]
        first = small.data(script.torch.device("cpu")).pools["test"].first
        assert all(int(of.min()) >= first for of in seen)

    def test_an_examination(self, script, tmp_path, monkeypatch):
        """As a network of the task leaves it: what is drawn is of the test characters."""
        tiny.write_archive(tmp_path)
        monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))
        task = script.OmniglotTask(
            "sum", embedding=4, image_size=8, validation_characters=10, evaluation_sets=100
        )
        found = task.examine(task.network(), script.torch.device("cpu"))
        write_examination(found, tmp_path / "examination")
        shown = []
        with monkeypatch.context() as patched:
            for name in ("draw_confusion", "draw_wrong"):
                patched.setattr(script, name, lambda content, file: shown.append(content))
            script.draw_examination(tmp_path / "examination", tmp_path)
        assert shown == [found.tables[2], found.galleries[1].pictures]
        script.draw_examination(tmp_path / "examination", tmp_path)
        assert (tmp_path / "omniglot-wrong.png").read_bytes().startswith(b"\x89PNG")
        assert "true number" in (tmp_path / "omniglot-confusion.svg").read_text()

    def test_wrong_answers_have_their_captions(self, script, tmp_path, monkeypatch):
        shown = []
        monkeypatch.setattr(script, "draw_panels", lambda panels, file: shown.append(panels))
        image = script.torch.full((2, 3, 3), 255, dtype=script.torch.uint8)
        script.draw_wrong([Picture("3 taken for 4", png_of(image))], tmp_path / "wrong.png")
        assert {title: pixels.shape for title, pixels in shown[0].items()} == {
            "3 taken for 4": (2, 3, 3)
        }

    def test_rows_of_the_confusion_are_the_true_numbers(self, script, figures, tmp_path):
        """A share that would be told as 0.0 is not."""
        shares = ("1", 0.7499, 0.25, 0.0001, 8), ("2", 0.001, 0.999, 0.0, 3)
        table = Table("", ("true", "1", "2", "3", "sets"), shares)
        script.draw_confusion(table, tmp_path / "confusion.svg")
        (ax,) = figures[0].axes
        told = {text.get_position(): text.get_text() for text in ax.texts}  # said, true
        assert told == {(0, 0): "75.0", (1, 0): "25.0", (0, 1): "0.1", (1, 1): "99.9"}
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("said", "true number of characters")
        assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3"]
        assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2"]

    def test_another_examination_is_refused(self, script, tmp_path):
        other = Examination((), (Gallery("cats", (Picture("a cat", b""),)),))
        write_examination(other, tmp_path / "cats")
        with pytest.raises(ValueError, match=r"cats has \['cats'\], expected 'What is said"):
            script.draw_examination(tmp_path / "cats", tmp_path)


@needs_page
class TestCommands:
    @pytest.mark.parametrize("line", COMMANDS)
    def test_have_the_flags_that_are_shown(self, line):
        check_flags(line)

    @pytest.fixture
    def planned(self, monkeypatch, tmp_path):
        """Config and directory of each run that the sweeps of the page would train."""
        monkeypatch.chdir(tmp_path)
        plan_runs, found = sweep.plan_runs, []

        def plan_none(*arguments):
            found.extend(one.plan for one in plan_runs(*arguments))
            return []

        monkeypatch.setattr(sweep, "plan_runs", plan_none)
        for line in COMMANDS:
            if line.startswith("equipool sweep"):
                done = CliRunner().invoke(make_app(), shlex.split(line)[1:])
                assert done.exit_code == 0, done.output
        return {str(plan.out): chosen_config(plan.task, plan.config) for plan in found}

    def test_train_every_method_alike(self, planned):
        made = [(c["fields"]["aggregation"], c["fields"]["seed"]) for c in planned.values()]
        methods = ("sum", "attention", "pna", "set-transformer", "equilibrium")
        assert sorted(made) == sorted((method, seed) for method in methods for seed in range(3))
        seen = {c["fields"]["batch_size"] * c["training"]["steps"] for c in planned.values()}
        assert seen == {2_048_000}
        alike = [without_choices(config) for config in planned.values()]
        assert all(config == alike[0] for config in alike)

    def test_evaluate_a_run_that_they_train(self, planned):
        (words,) = [shlex.split(line) for line in COMMANDS if " evaluate " in line]
        run, which = words[2], words[words.index("--which") + 1]
        assert run in planned
        assert f"--examination {examination_folder(run, which).as_posix()}\n" in PAGE

    @needs_records
    def test_are_those_of_the_records(self, planned):
        wanted = [comparable(config) for config in planned.values()]
        found = [comparable(run.config) for run in read_runs(RECORDS)]
        assert len(found) == len(wanted)
        assert all(config in wanted for config in found)


def without_choices(config):
    """A config without what the experiment compares, or chooses for each method."""
    fields = {k: v for k, v in config["fields"].items() if k not in ("aggregation", "seed")}
    return fields, {k: v for k, v in config["training"].items() if k != "learning_rate"}


def comparable(config):
    """A config without what changes no number."""
    return config["fields"], {k: v for k, v in config["training"].items() if k not in FREE}


@needs_page
@needs_records
class TestRecords:
    @pytest.fixture
    def runs(self):
        return read_runs(RECORDS)

    @pytest.fixture
    def alone(self):
        return recorded(ROOT / "records" / "omniglot-speed")

    def test_the_page_is_that_of_the_records(self, script, runs, alone):
        assert script.refresh(PAGE, script.blocks(runs, alone)) == PAGE

    def test_all_seconds_are_of_runs_alone(self, script, runs, alone):
        """Without the start of a short run: times 32, it would be most of the seconds."""
        assert untimed(runs, [run for run in alone if script.steps_before(run)]) == []

    def test_the_pictures_of_the_page_are_there(self):
        shown, drawn = pictures_of("omniglot")
        assert shown == drawn


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_no_page_is_unfinished(page):
    assert "RESULT-SENTENCE" not in page.read_text(encoding="utf-8")
