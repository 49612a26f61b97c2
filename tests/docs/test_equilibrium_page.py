"""The page about convergence: made from the records of runs."""

from dataclasses import replace

import pytest
from figure_scripts import FIGURES, ROOT, load_script
from page_tables import fill_tables

from command_lines import check_flags, command_lines
from equipool.training import AtSteps
from python_blocks import run_page
from run_records import record, written

script = load_script("equilibrium")
PAGE = (ROOT / "docs" / "equilibrium.md").read_text(encoding="utf-8")


def run_named(folder, name, errors):
    """A run that was evaluated with 1, 10 and 100 steps."""
    (found,) = written(folder / name, record([1.0]))
    rows = [
        AtSteps(number, {"mse": error}, 0.1 / number, 0.2 / number, 0.5)
        for number, error in zip((1, 10, 100), errors, strict=True)
    ]
    return replace(found, name=name, over_steps={"best": rows})


@pytest.fixture
def runs(tmp_path):
    return [
        run_named(tmp_path, "converging-seed-0", (3.0, 2.0, 2.0)),
        run_named(tmp_path, "plain-seed-0", (3.0, 1.0, 8.0)),
        run_named(tmp_path, "plain-seed-1", (3.0, 2.0, 4.0)),
        replace(run_named(tmp_path, "plain-seed-2", (0.0, 0.0, 0.0)), over_steps={}),
    ]


def test_recipes_are_averaged_over_the_seeds_that_were_evaluated(runs):
    table = script.over_steps(runs, "mse", ".2f")
    assert table.headings == ("recipe", "seeds", "1", "10", "100")
    assert table.rows == (
        ("plain", "2", "3.00", "1.50", "6.00"),
        ("converging", "1", "3.00", "2.00", "2.00"),
    )


def test_a_recipe_that_draws_its_steps_is_shown_at_ten(runs):
    for run, steps in zip(runs, ("random", 1, 1, 1), strict=True):
        run.config["fields"]["inner_steps"] = steps
    plain, converging = script.convergence(runs, "mse", ".2f").rows
    assert plain[:5] == ("plain", "1", "3.00 ± 0.00", "100", "6.00 ± 2.83")
    assert converging == (
        "converging", "10", "2.00", "100", "2.00", "1.0e-03", "2.0e-03", "50.0%", "-",
    )  # fmt: skip


def test_the_spread_from_random_starts_may_be_of_another_checkpoint(runs):
    started = AtSteps(50, {"mse": 1.0}, 0.1, 0.1, 1.0, spread=0.25)
    run = replace(runs[0], over_steps=runs[0].over_steps | {"last": [started]})
    (row,) = script.convergence([run], "mse", ".2f").rows
    assert row[-1] == "2.5e-01"
    assert row[3] == "100"  # the steps are those of the longer evaluation


def test_attention_is_named_beside(runs):
    rivals = [replace(run, name=run.name.replace("plain", "attention")) for run in runs[1:3]]
    assert script.rival(rivals, "mse", ".2f").endswith("1.00 ± 0.00 (2 seeds).")


def test_every_variant_has_its_areas():
    found = {"valid_auc": {"5": 0.5, "10": 0.75}, "residual_99": 0.001, "converged": 0.5}
    table = script.choices({"plain": found})
    assert table.headings == ("change", "5", "10", "residual, 99 %", "converged")
    assert table.rows == (("plain", "0.5000", "0.7500", "1.0e-03", "50.0%"),)


def test_gradients_are_listed_by_network_and_number_of_steps():
    agreement = {"cosine": 1.0, "relative_error": 0.01}
    found = {
        "method": "Implicit()", "parameters": agreement, "x": agreement, "converged": 1.0,
        "fallback": 0.0, "seconds": {"median": 0.5}, "peak_bytes": 3 * 2**20,
    }  # fmt: skip
    table = script.implicit(
        [{"task": "bags", "fields": {"dataset": "jets"}, "steps": {"20": {"rows": [found]}}}]
    )
    assert table.rows == (
        ("jets", "20", "Implicit()", "100%", "0%", "1.0e-02", "1.0e-02", "500", "3"),
    )


def test_the_cost_is_the_mean_of_the_drawn_numbers():
    seconds = {"5": 0.01, "10": 0.02, "20": 0.03, "40": 0.06}
    table = script.costs({"unrolled": seconds})
    assert table.rows == (("unrolled", "10", "20", "30", "60", "30"),)


def test_the_figure_has_a_line_per_run(runs):
    subject = script.Subject("median", "mse", ".1e", runs)
    assert script.draw([subject]).startswith(b"\x89PNG")


def test_the_numbers_of_the_page_are_those_of_the_records():
    assert fill_tables(PAGE, script.tables(*script.read())) == PAGE, (
        "run docs/figures/equilibrium.py"
    )
    assert (FIGURES / "equilibrium-over-steps.png").exists()


@pytest.mark.parametrize("line", command_lines(PAGE))
def test_commands_have_the_flags_that_are_shown(line):
    check_flags(line)


def test_the_examples_run():
    run_page("docs/equilibrium.md")
