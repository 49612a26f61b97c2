"""A random number of inner steps in the engine: a function of seed and step."""

from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from runs import run
from torch import nn
from toy import Pooled, Toy, config

import equipool
from equipool import EquilibriumAggregation, RandomSteps
from equipool.training import Shard
from equipool.training.devices import Accelerator, seed_step
from equipool.training.step import DepthDraw, Runner, TrainStep, make_network
from finished_runs import last_tensors


def layer(steps):
    return EquilibriumAggregation(1, 2, steps=steps)


def test_draws_depend_on_seed_and_step_alone():
    network = nn.ModuleList([layer(RandomSteps(5, 80)), layer(7)])
    draw = DepthDraw(network, seed=3)
    torch.manual_seed(0)
    found = [draw(step) for step in range(2000)]
    torch.manual_seed(1)
    again = DepthDraw(network, seed=3)
    assert [again(step) for step in reversed(range(2000))] == found[::-1]
    assert [DepthDraw(network, seed=4)(step) for step in range(2000)] != found
    counts = Counter(found)
    assert sorted(counts) == [(5,), (10,), (20,), (40,), (80,)]
    assert all(300 < count < 500 for count in counts.values())
    assert draw.all() == sorted(counts, reverse=True)


def test_training_takes_the_drawn_depths_and_evaluation_the_largest(tmp_path, monkeypatch):
    taken = {True: [], False: []}
    forward = Pooled.forward

    def watched(self, x):
        with equipool.record(diagnostics=False) as solutions:
            found = forward(self, x)
        taken[self.training] += [int(solution.num_steps.max()) for solution in solutions]
        return found

    monkeypatch.setattr(Pooled, "forward", watched)
    run(tmp_path, Toy(kind="deep", seed=2))
    draw = DepthDraw(make_network(Toy(kind="deep")), seed=2)
    assert taken[True] == [draw(step)[0] for step in range(20)]
    assert len(set(taken[True])) == 3
    assert set(taken[False]) == {4}


@pytest.mark.parametrize("kind", ["noisy", "deep"])
def test_a_captured_step_is_the_step(monkeypatch, kind):
    """With recordings that run the step again, as a graph would: it reads its batch by the counter
    on the device, warming up changes nothing, and each depth has a recording of its own."""

    def record(step, **memory):
        pool = step.__self__.step.module.pool
        number = pool.steps
        for _ in range(3):
            step()

        def replay():
            before, pool.steps = pool.steps, number
            step()
            pool.steps = before

        return replay

    monkeypatch.setattr("equipool.training.step.capture_step", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    task, place = Toy(kind=kind), Accelerator("cpu")
    chunks = [task.batches(first, 4, place.device, Shard()) for first in (0, 4)]
    batch, found = {name: values[0] for name, values in chunks[0].items()}, []
    for device in ("cpu", "cuda"):
        step = TrainStep(task, config(), place, batch)
        chosen = SimpleNamespace(device=SimpleNamespace(type=device), alone=True)
        runner = Runner(step, chunks[0], chosen, 0)
        for number in range(8):
            runner.load(chunks[number // 4])
            seed_step(0, number, 0, place.device)
            runner.run(number)
        found.append({name: value.clone() for name, value in step.tensors().items()})
        assert len(runner._graphs) == (0 if device == "cpu" else len(step.depths.all()))
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning")
def test_compiled_it_trains_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    folders = [
        run(tmp_path, Toy(kind="deep"), config(compile=c), name=str(c)) for c in (True, False)
    ]
    one, other = (last_tensors(folder)["rows"] for folder in folders)
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
