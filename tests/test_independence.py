"""The measure of path independence, on layers whose minimum is known."""

import sys

import pytest
import torch

import equipool
from cases import flatten, make_layer, make_sets
from equipool import EquilibriumAggregation, Fixed, ZeroStart, closed_form, path_independence

X, INDEX = flatten(make_sets((3, 5, 1), channels=3))


def test_a_layer_that_reaches_its_minimum():
    """Half the way at every step."""
    layer = closed_form.mean(3, learning_rate=0.25, num_steps=1).double()
    found = path_independence(layer, X, INDEX, steps=(0, 1, 2, 3, 60), num_starts=4)
    assert [row.num_steps for row in found.rows] == [0, 1, 2, 3, 60]
    assert [row.distance for row in found.rows] == pytest.approx([1, 1 / 2, 1 / 4, 1 / 8, 0])
    assert found.alignment == pytest.approx(1)
    assert found.start_distance == pytest.approx(0, abs=1e-12)
    assert [row.converged for row in found.rows] == [0, 0, 0, 0, 1]
    means = torch.stack([X[number == INDEX].mean(0) for number in range(3)])
    first = (2 * means).abs().amax(-1).sort().values  # the gradient at zero
    assert found.rows[0].residual == pytest.approx(first[1].item())
    assert found.rows[0].residual_99 == pytest.approx(first[2].item())
    assert found.rows[-1].residual_99 < 1e-9


def test_a_layer_that_does_not_move_keeps_its_starts():
    layer = closed_form.mean(3, learning_rate=0.25).double()
    layer.start = equipool.LearnedStart(3, 1.0).double()
    found = path_independence(layer, X, INDEX, steps=(0,), num_starts=400, start_std=2.0)
    assert found.rows[0].distance == 0
    assert abs(found.alignment) < 0.15
    assert found.start_distance == pytest.approx(5**0.5, rel=0.1)  # 2 and 1, at right angles


def test_it_changes_nothing():
    layer = make_layer().train()
    steps, start, state = layer.steps, layer.start, torch.random.get_rng_state()
    first = path_independence(layer, X, INDEX, steps=(1, 2))
    assert (layer.steps, layer.start, layer.training) == (steps, start, True)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert path_independence(layer, X, INDEX, steps=(2, 1, 2)) == first
    assert path_independence(layer, X, INDEX, steps=(1, 2), seed=1) != first


def test_empty_sets_and_sets_that_are_not_finite_are_left_out():
    layer = make_layer()
    found = path_independence(layer, X, INDEX, steps=(1, 4))
    x = torch.cat([X, torch.full_like(X[:1], torch.nan)])
    index = torch.cat([INDEX, INDEX.new_tensor([3])])
    more = path_independence(layer, x, index, dim_size=6, steps=(1, 4))
    for row, expected in zip(more.rows, found.rows, strict=True):
        assert row == pytest.approx(expected)
    with pytest.raises(ValueError, match="no set has elements"):
        path_independence(layer, x[-1:], torch.zeros(1, dtype=torch.int64))


def test_a_tolerance_is_kept():
    layer = EquilibriumAggregation(3, 4, steps=Fixed(3, tolerance=1e9), start=ZeroStart(4)).double()
    assert path_independence(layer, X, INDEX, steps=(0, 1)).rows[0].converged == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"steps": ()}, "steps is empty"), ({"steps": (-1,)}, "steps is -1"),
     ({"num_starts": 0}, "num_starts is 0"), ({"start_std": -1.0}, "std is -1")],
)  # fmt: skip
def test_bad_arguments(settings, message):
    with pytest.raises(ValueError, match=message):
        path_independence(make_layer(), X, INDEX, **({"steps": (1,)} | settings))


def test_table_and_picture(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    found = path_independence(make_layer(), X, INDEX, steps=(1, 20), num_starts=2)
    lines = str(found).splitlines()
    assert len({len(line) for line in lines[:3]}) == 1
    assert [line.split()[0] for line in lines[1:3]] == ["1", "20"]
    assert lines[3].startswith("2 random starts after 20 steps: alignment ")
    found.plot(tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").stat().st_size > 1000
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "equipool\[report\]"'):
        found.plot()
