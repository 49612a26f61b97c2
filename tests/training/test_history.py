"""Rows on the device, spikes on the host."""

import pytest
import torch
from equipool.training.history import History, Spikes


@pytest.mark.parametrize(("steps", "expected"), [(3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (7, [5, 6])])
def test_the_rows_since_the_last_point_are_read(steps, expected):
    history = History(["loss", "other"], 5, torch.device("cpu"))
    for step in range(steps):
        value = torch.tensor(float(step), requires_grad=True)
        history.write(torch.tensor([step]), [value, 2 * value])
    columns = history.read(steps)
    assert columns["loss"].tolist() == expected
    assert columns["other"].tolist() == [2 * step for step in expected]
    assert not history.rows.requires_grad


def test_a_spike_is_ten_times_the_median_of_the_thousand_before():
    spikes = Spikes()
    old = torch.full((500,), 1000.0)  # forgotten after a thousand more
    new = torch.cat([torch.linspace(1, 3, 999), torch.tensor([torch.nan, torch.inf, 2.0])])
    assert spikes.take(old) == 0
    spikes.take(new)
    further = torch.tensor([1.0, 19.9, 20.1, 1e9, torch.nan, torch.inf, 2.0])
    assert spikes.take(further) == 3
    assert spikes.recent.isfinite().all()
    assert len(spikes.recent) == 1000


def test_nothing_is_a_spike_while_there_are_few_losses():
    spikes = Spikes()
    assert spikes.take(torch.ones(99)) == 0
    assert spikes.take(torch.tensor([1e6])) == 0
    assert spikes.take(torch.tensor([1e6])) == 1
    assert spikes.count == 1
