"""The demonstration's numbers."""

from dataclasses import replace

import pytest
import torch

from equipool import EquilibriumAggregation
from equipool.demo import study
from equipool.demo.study import EQUILIBRIUM, SUM, Plan, error_along, follow, landscape, run_study
from equipool.experiments.median.data import medians, sample_sets
from equipool.experiments.median.network import MedianNetwork
from equipool.training import Shard

PLAN = Plan(
    steps=3, width=8, channels=4, inner_steps=3, batch_size=4, set_size=10, test_sets=20,
    path_sets=10, inner_steps_shown=6, grid=7,
)  # fmt: skip


def silent(name):
    return False


@pytest.fixture
def network():
    return PLAN.task(EQUILIBRIUM).network()


@pytest.fixture
def sets():
    x, _ = sample_sets((3,), PLAN.set_size, torch.Generator().manual_seed(0))
    return x.unsqueeze(-1), medians(x)


def test_the_networks_are_the_experiments_and_of_about_the_same_size():
    ours, theirs = (Plan().task(method).network() for method in (EQUILIBRIUM, SUM))
    assert isinstance(ours, MedianNetwork)
    assert isinstance(theirs, MedianNetwork)
    assert isinstance(ours.aggregation, EquilibriumAggregation)
    counts = [sum(p.numel() for p in net.parameters()) for net in (ours, theirs)]
    assert 0.8 < counts[0] / counts[1] < 1.25


def test_both_networks_are_trained_on_the_same_sets():
    ours, theirs = (
        PLAN.task(method).batches(0, 2, torch.device("cpu"), Shard())
        for method in (EQUILIBRIUM, SUM)
    )
    assert torch.equal(ours["x"], theirs["x"])


def test_a_seed_gives_the_same_errors_and_another_seed_others():
    first, again, other = (
        [result.error for result in run_study(plan, silent).results]
        for plan in (PLAN, PLAN, replace(PLAN, seed=1))
    )
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_with_seconds_sum_pooling_gets_as_many_steps_and_then_as_many_seconds(monkeypatch):
    """A step of equilibrium takes a tenth of a second here, one of sum pooling a hundredth."""
    fit = study.fit

    def timed(task, config, device, progress=False):
        fitted = fit(task, config, device, progress=progress)
        seconds = 0.01 if task.aggregation == "scaled-sum" else 0.1
        return replace(
            fitted, record=replace(fitted.record, training_seconds=config.steps * seconds)
        )

    monkeypatch.setattr(study, "fit", timed)
    results = run_study(replace(PLAN, steps=None, seconds=0.5), silent).results
    assert [result.steps for result in results] == [5, 5, 50]
    names = ["equilibrium", "sum pooling (same steps)", "sum pooling (same time)"]
    assert [result.name for result in results] == names


def test_paths_pass_through_the_layers_output_and_continue(network, sets):
    layer, x = network.aggregation, sets[0]
    paths = follow(layer, x, num_steps=7)
    assert paths.num_steps == 7
    assert layer.num_steps == paths.trained_steps == 3
    torch.testing.assert_close(paths.y[3], layer(x).detach())
    assert not torch.equal(paths.y[-1], paths.y[-2])
    torch.testing.assert_close(paths.energy[3], layer.solve(x).energy.detach())


def test_error_along_the_path_is_that_of_the_network_at_the_trained_step(network, sets):
    x, target = sets
    errors = error_along(network, follow(network.aggregation, x, num_steps=5), target)
    expected = (network(x.squeeze(-1)) - target).square().mean()
    torch.testing.assert_close(errors[3], expected.detach())
    assert errors.shape == (6,)


def test_the_landscape_is_the_layers_energy_on_a_plane_through_the_end(network, sets):
    layer, x = network.aggregation, sets[0][:1]
    path = follow(layer, x, num_steps=6).y[:, 0]
    found = landscape(layer, x[0], path, grid=5)
    assert torch.equal(found.path[-1], torch.zeros(2))
    # an independent way to the same plane: the two leading eigenvectors of the scatter matrix
    away = path - path[-1]
    directions = torch.linalg.eigh(away.T @ away).eigenvectors[:, -2:].flip(-1).T
    signs = torch.sign((away @ directions.T * found.path).sum(0))
    for row, column in ((0, 0), (1, 3), (4, 2)):
        point = torch.stack([found.horizontal[column], found.vertical[row]]) * signs
        y = path[-1:] + point @ directions
        torch.testing.assert_close(
            found.energy[row, column], layer.energy(x)(y)[0].detach(), rtol=1e-2, atol=1e-3
        )


def test_the_landscape_holds_the_whole_path_at_one_scale(network, sets):
    layer, x = network.aggregation, sets[0][:1]
    found = landscape(layer, x[0], follow(layer, x, num_steps=6).y[:, 0], grid=5)
    for axis, points in ((found.horizontal, found.path[:, 0]), (found.vertical, found.path[:, 1])):
        assert axis[0] < points.min()
        assert axis[-1] > points.max()
    width, height = (axis[-1] - axis[0] for axis in (found.horizontal, found.vertical))
    torch.testing.assert_close(width, height)


@pytest.mark.parametrize(
    ("path", "share"),
    [
        ([[3.0, 0, 0, 0], [1, 2, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]], 1),
        ([[3.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], 13 / 14),
    ],
)
def test_the_share_of_the_path_in_the_plane(network, sets, path, share):
    found = landscape(network.aggregation, sets[0][0], torch.tensor(path), grid=3)
    assert found.share == pytest.approx(share)
