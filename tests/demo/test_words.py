import pytest
import torch

from equipool.demo.paths import Landscape, Paths
from equipool.demo.results import Result, table
from equipool.demo.train import History
from equipool.demo.words import about_curves, about_energy, about_landscape


def result(method, error, steps=100, seconds=10.0, allowance=""):
    times = torch.linspace(seconds / steps, seconds, steps).tolist()
    return Result(method, allowance, 1234, History([1.0] * steps, times), error)


def test_the_lower_error_is_named_whichever_it_is():
    ours = about_curves([result("equilibrium", 1e-4), result("sum pooling", 3e-4)])
    theirs = about_curves([result("equilibrium", 3e-4), result("sum pooling", 1e-4)])
    assert "the test error of equilibrium is 3.0 times lower than that of sum pooling" in ours
    assert "the test error of sum pooling is 3.0 times lower than that of equilibrium" in theirs


@pytest.mark.parametrize("error", [1.05e-4, 0.96e-4])
def test_nearly_equal_errors_are_called_the_same(error):
    text = about_curves([result("equilibrium", 1e-4), result("sum pooling", error)])
    assert "about the same" in text
    assert "lower" not in text


def test_an_error_that_is_not_finite_wins_nothing():
    text = about_curves([result("equilibrium", float("nan")), result("sum pooling", 1e-4)])
    assert "not finite" in text
    assert "lower" not in text


def test_steps_and_seconds_are_told_apart():
    equal_steps = result("sum", 2e-4, 100, 4.0, "same steps")
    equal_seconds = result("sum", 5e-5, 500, 10.0, "same time")
    text = about_curves([result("equilibrium", 1e-4), equal_steps, equal_seconds])
    assert "After 100 steps each, the test error of equilibrium is 2.0 times lower" in text
    assert "After 10 seconds each (100 and 500 steps), the test error of sum is 2.0" in text
    assert "takes 5.0 times as long" in text


def test_ratios_in_the_table_are_to_the_first_network():
    rows = table(
        [result("equilibrium", 2e-4), result("sum pooling", 3e-4, 2000, 4.25, "same steps")]
    )
    assert [row.name for row in rows] == ["equilibrium", "sum pooling (same steps)"]
    assert [row.ratio for row in rows] == ["1.00", "1.50"]
    assert (rows[1].parameters, rows[1].steps, rows[1].seconds) == ("1,234", "2,000", "4.2")
    assert rows[1].error == "3.00e-04"


def paths(energies):
    energy = torch.tensor(energies)
    return Paths(1, torch.zeros(*energy.shape, 2), energy)


def test_falling_energies_are_counted():
    text = about_energy(paths([[3.0, 3, 3], [2, 2, 4], [1, 5, 5]]), torch.tensor([1.0, 1, 1]))
    assert "to step 1 the energy falls in 2 of 3 sets, and from there to step 2 in 1" in text


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (4.0, "is worse than after the 1 it was trained with: its mean squared error is 4 times"),
        (1987.4, "its mean squared error is 1,987 times as large"),
        (0.25, "is better than after the 1 it was trained with: its mean squared error is 4 times"),
        (1.05, "is about as good as after the 1"),
        (float("nan"), "is not finite"),
        (float("inf"), "is not finite"),
    ],
)
def test_the_error_of_a_longer_search_is_told_as_it_is(last, expected):
    text = about_energy(paths([[3.0], [2], [1]]), torch.tensor([9.0, 1, last]))
    assert expected in text


def test_the_share_of_the_path_in_the_plane_is_told():
    none = torch.zeros(1)
    text = about_landscape(Landscape(none, none, none, none, 5, 0.976))
    assert "97.6%" in text
