"""benchmarks/gradients.py: its parts measure what they say, and the page shows its record."""

import json
import math
import re
from dataclasses import asdict, replace

import choosing
import choosing_tables
import pytest
import torch
from gradients_measures import (
    Counted,
    measure_backward,
    measure_quality,
    measure_solvers,
    measure_stopping,
    solvers_for,
    time_in_turn,
)
from gradients_record import Backward, GradientRecord, Quality, Stopping, read_gradient_record
from gradients_subjects import Subjects, make_examples, make_layer, make_settling_layer
from typer.testing import CliRunner

from equipool import Nesterov
from equipool.bench.cases import Budget
from equipool.bench.record import Timing
from equipool.linear_solvers import ConjugateGradients
from gradients import CPU, CUDA, app, make_jobs

DEVICE = torch.device("cpu")
ONCE = Budget(repeats=1, warmup=0)


def timing(milliseconds):
    return Timing(*[milliseconds] * 5, repeats=1)


@pytest.fixture(scope="module")
def call():
    return lambda *arguments: CliRunner().invoke(app, ["--quick", *map(str, arguments)])


@pytest.fixture(scope="module")
def found(call, tmp_path_factory):
    """A run of the script, and the record it wrote."""
    file = tmp_path_factory.mktemp("gradients") / "quick.json"
    done = call("--device", "cpu", "--out", file, "--commit", "abc")
    assert done.exit_code == 0, done.output
    return done, file


class TestScript:
    def test_writes_every_part(self, found):
        _, file = found
        record = read_gradient_record(file)
        assert record.commit == "abc"
        assert record.command == "python benchmarks/gradients.py --device cpu --quick"
        assert record.hardware["device"] == "cpu"
        assert {row.state for row in record.quality} == {"untrained", "trained", "convex"}
        assert {row.state for row in record.training} == {"trained", "convex"}
        assert len(record.quality) == 3 * 6
        assert len(record.cost) == 2 * 6
        assert len(record.solvers) == 6 + 6 + 7
        assert (len(record.stopping), len(record.backward)) == (1, 2)
        assert str(file.parent) not in file.read_text()
        assert asdict(record) == json.loads(file.read_text())

    def test_prints_every_table(self, found):
        done, _ = found
        for part in ("training", "quality", "cost", "solvers", "stopping", "backward"):
            assert re.search(rf"^ *{part} *$", done.output, re.MULTILINE)

    def test_some_parts_alone(self, call, tmp_path):
        file = tmp_path / "some.json"
        done = call("--device", "cpu", "--only", "stopping,backward", "--out", file)
        assert done.exit_code == 0, done.output
        record = read_gradient_record(file)
        assert record.command.endswith("--quick --only stopping,backward")
        assert (len(record.stopping), len(record.backward)) == (1, 2)
        assert [record.quality, record.cost, record.solvers] == [[], [], []]
        assert [row.state for row in record.training] == ["convex"]
        assert not re.search(r"^ *quality *$", done.output, re.MULTILINE)

    @pytest.mark.parametrize(
        ("flag", "value", "expected"),
        [
            ("--only", "quality,speed", "one of quality, cost, solvers, stopping, backward"),
            ("--only", "", "one of quality"),
            ("--device", "abacus", "'cpu' or 'cuda'"),
        ],
    )
    def test_an_unknown_name_is_refused(self, call, flag, value, expected):
        done = call(flag, value)
        assert done.exit_code == 2
        assert f"expected {expected}" in " ".join(done.output.replace("│", " ").split())

    def test_an_unwritable_record_is_noticed_before_measuring(self, call, tmp_path):
        (tmp_path / "file").touch()
        done = call("--device", "cpu", "--out", tmp_path / "file" / "x.json")
        assert done.exit_code == 2
        assert "--out" in done.output


def test_a_record_of_another_kind_is_refused(tmp_path):
    file = tmp_path / "other.json"
    file.write_text('{"format": 1}')
    with pytest.raises(ValueError, match="has kind None, expected gradients"):
        read_gradient_record(file)


def test_plans_cover_what_the_pages_show():
    for plan in (CPU, CUDA):
        assert (plan.sizes, plan.num_steps) == ((8, 64, 300), (5, 15, 50, 100))
        assert plan.cost_steps == (15, 50)
    names = [job.description for job in make_jobs(CPU, Subjects(DEVICE, 0))]
    assert len(set(names)) == len(names)


class TestSubjects:
    def test_examples_are_those_of_the_median_experiment(self):
        examples = make_examples(300, seed=0, device=DEVICE)
        x = examples.batch.x.view(300, -1)
        torch.testing.assert_close(examples.median, x.quantile(0.5, dim=1))
        assert (x < 0).any(-1).double().mean() == pytest.approx(1 / 3, abs=0.15)  # normal numbers

    def test_are_trained_once_and_handed_out_as_copies(self):
        subjects = Subjects(DEVICE, training_steps=2)
        first, second = subjects("trained", 2), subjects("trained", 2)
        assert len(subjects.trainings) == 1
        assert first is not second
        untrained = subjects("untrained", 2)
        assert len(subjects.trainings) == 1
        weight = "potential.linears.0.weight"
        assert not torch.equal(first.state_dict()[weight], untrained.state_dict()[weight])
        torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)

    def test_training_lowers_the_loss(self):
        subjects = Subjects(DEVICE, training_steps=60)
        subjects("convex", 8)
        (training,) = subjects.trainings
        assert training.loss_after < 0.9 * training.loss_before
        assert "60 steps of Adam" in training.recipe

    @pytest.mark.parametrize("steps", [50, 100])
    def test_the_settling_layer_settles(self, steps):
        layer = make_settling_layer(8, learning_rate=2.5 / steps)
        layer.num_steps = steps
        solution = make_examples(8, 5, DEVICE).batch.solve(layer)
        assert solution.converged.double().mean() >= 0.75


class TestMeasures:
    def test_unrolled_is_the_exact_one_and_the_implicit_one_falls_back_unless_converged(self):
        layer = make_layer("untrained", 3)
        layer.num_steps = 4
        rows = {row.way: row for row in measure_quality(layer, "untrained", 3, DEVICE)}
        assert rows["Unrolled"].error < 1e-3
        assert rows["Implicit, CG"].fallback == 1.0
        assert rows["Implicit, CG"].cosine == pytest.approx(rows["Truncated(5)"].cosine, abs=1e-4)

    def test_what_is_not_finite_is_none(self):
        layer = make_layer("untrained", 3)
        with torch.no_grad():
            layer.potential.linears[0].weight.fill_(math.nan)
        rows = list(measure_quality(layer, "untrained", 2, DEVICE))
        assert {(row.cosine, row.error) for row in rows} == {(None, None)}

    def test_early_stopping_meets_sets_of_both_kinds(self):
        layer = make_settling_layer(4, learning_rate=0.025)
        found = measure_stopping(layer, 6, DEVICE, ONCE)
        assert 4 <= found.early_steps <= 6
        assert 30 <= found.late_steps <= found.num_steps <= 200
        assert found.largest_difference < 1e-3 / 4 * 2  # tolerance over least curvature, twice
        assert found.elements == make_examples(6, 5, DEVICE).batch.x.shape[0]

    def test_what_is_compared_is_timed_in_turn(self):
        calls = []
        times = {"a": iter([9.0, 1.0, 3.0, 2.0]), "b": iter([9.0, 10.0, 10.0, 40.0])}

        def clock(name):
            calls.append(name)
            return next(times[name])

        steps = {name: lambda name=name: clock(name) for name in times}
        found = time_in_turn(steps, Budget(repeats=3, warmup=1))
        assert calls == ["a", "b"] * 4
        assert (found["a"].median, found["b"].median, found["b"].slowest) == (2.0, 10.0, 40.0)

    def test_backward_counts_the_steps_of_the_linear_solver(self):
        layer = make_settling_layer(4)
        found = measure_backward("a layer", layer, 3, DEVICE, ONCE)
        assert 1 <= found.cg_steps <= 2 * 4
        assert found.short_bytes > 0
        assert (found.short_steps, found.long_steps) == (5, 50)

    def test_counting_changes_nothing(self):
        solver, b = ConjugateGradients(), torch.randn(3, 4)
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
        counted = Counted(solver)
        found, expected = (s(lambda v: v * scale, b) for s in (counted, solver))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert counted.most_steps == int(expected.steps.max()) > 1

    def test_each_solver_is_given_what_the_layer_has_learned(self):
        layer = make_layer("untrained", 3)
        layer.solver = Nesterov(0.2, momentum=0.4)
        solvers = solvers_for(layer)
        for name in ("GradientDescent", "Nesterov"):
            assert solvers[name].learning_rate.item() == pytest.approx(0.2)
        assert "Newton" not in solvers_for(make_layer("convex", 65))

    def test_solvers_say_how_many_steps_they_took(self):
        rows = {
            row.solver: row
            for row in measure_solvers(make_layer("convex", 3), "convex", 3, 200, DEVICE, 1)
        }
        assert rows["StronglyConvexNesterov"].converged == 1.0
        assert rows["StronglyConvexNesterov"].most_steps < 200
        assert {row.max_steps for row in rows.values()} == {50, 200}
        assert rows["Newton after Nesterov"].max_steps == rows["Newton"].max_steps == 50


def make_record():
    quality = [
        Quality("trained", 8, 2, 5, way, cosine, error, 0.5, 0.5, 0.5, fallback)
        for way, cosine, error, fallback in (
            ("Unrolled", 1.0, 1e-6, None),
            ("OneStep", 0.25, 0.9, None),
            ("Implicit, CG", None, None, 0.5),
        )
    ]
    record = GradientRecord("a command", "a date", "abc", {}, {"device": "cpu", "threads": 2},
                            quality=quality)  # fmt: skip
    record.stopping.append(
        Stopping(64, 10, 260, 1e-3, 5.0, 50.0, 60, timing(30.0), timing(15.0), 1e-4)
    )
    record.backward.append(
        Backward(
            "a layer", 64, 10, 5, 50, 10 * 2**20, 11 * 2**20, 4, 0.0, timing(6.0), timing(50.0)
        )
    )
    return record


class TestTables:
    def test_ratios(self):
        (stopping,), (backward,) = make_record().stopping, make_record().backward
        assert stopping.speedup == 2.0
        assert backward.memory_ratio == 1.1
        assert backward.step_ms == 1.0
        assert backward.time_ratio == 0.5

    def test_what_is_missed_says_so(self):
        (found,), (implicit,) = make_record().stopping, make_record().backward
        assert found.reached
        assert not replace(found, stopping=timing(21.0)).reached
        assert implicit.missed == []
        slow = replace(implicit, implicit=timing(13.0))
        assert slow.missed == ["time"]
        assert replace(slow, long_bytes=13 * 2**20).missed == ["memory", "time"]
        record = make_record()
        record.backward[:] = [slow]
        assert "time missed" in choosing_tables.backward([record])

    def test_quality_tells_what_is_not_finite_and_who_fell_back(self):
        lines = choosing_tables.quality(make_record()).splitlines()
        (line,) = [line for line in lines if line.startswith("| 8 | 5 |")]
        assert "0.2500, 0.9" in line
        assert "not finite, not finite; 50 % fell back" in line

    def test_every_record_has_its_rows(self):
        other = replace(make_record(), hardware={"device": "cuda", "gpu": "A GPU"})
        text = choosing_tables.stopping([make_record(), other])
        assert text.count("| 2 CPU cores |") == text.count("| A GPU |") == 1


class TestPage:
    def test_shows_the_records(self):
        page = choosing.PAGE.read_text(encoding="utf-8")
        assert choosing.refresh(page, choosing.read_records()) == page, (
            "run: python docs/figures/choosing.py"
        )

    def test_of_each_machine_the_newest_record_that_has_a_part_is_shown(self):
        gpu = {"device": "cuda", "gpu": "A GPU"}
        records = {
            "cpu": replace(make_record(), date="2026-01-05T00:00:00Z"),
            "gpu-later": replace(make_record(), hardware=gpu, date="2026-01-03T00:00:00Z",
                                 quality=[], stopping=[]),
            "gpu": replace(make_record(), hardware=gpu, date="2026-01-02T00:00:00Z"),
            "gpu-earlier": replace(make_record(), hardware=gpu, date="2026-01-01T00:00:00Z"),
        }  # fmt: skip
        assert list(choosing.newest(records, "backward")) == ["cpu", "gpu-later"]
        assert list(choosing.newest(records, "stopping")) == ["cpu", "gpu"]
        assert choosing.newest(records, "cost") == {}

    def test_a_page_is_made_anew_between_its_marks_alone(self):
        page = "above\n<!-- generated: stopping -->\nold\n<!-- end -->\nbelow\n"
        records = {"cpu": make_record()}
        fresh = choosing.refresh(page, records)
        assert fresh.startswith("above\n<!-- generated: stopping -->\n\n| where")
        assert fresh.endswith("|\n\n<!-- end -->\nbelow\n")
        assert choosing.refresh(fresh, records) == fresh

    def test_shows_the_picture_of_the_record(self, tmp_path):
        choosing.draw_all(choosing.read_records(), tmp_path)
        for drawn in tmp_path.iterdir():
            shown = (choosing.FIGURES / drawn.name).read_text()
            assert drawn.read_text() == shown, "run: python docs/figures/choosing.py"
