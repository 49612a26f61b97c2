"""Captured steps."""

import gc
import math

import pytest
import torch
from runs import Heard
from toy import Toy, config

from equipool import RandomSteps
from equipool.cuda import clear_workspaces
from equipool.training import Shard, read_log, read_record, train
from equipool.training.devices import Accelerator
from equipool.training.step import NUMBERS, DepthDraw, Runner, TrainStep
from finished_runs import assert_same_tensors, last_tensors, numbers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def run(folder, task, training, **more):
    train(task, training, folder, device="cuda", progress=Heard(), **more)
    return folder


def assert_close(folder, other):
    first, second = last_tensors(folder), last_tensors(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        if name.startswith(("model/", "average/")):
            torch.testing.assert_close(value, second[name], rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", ["plain", "pooled", "deep", "scattered", "noisy"])
def test_a_captured_step_is_the_step(tmp_path, kind):
    task = Toy(kind=kind, broken_steps=(9,))
    captured = run(tmp_path / "captured", task, config(capture=True))
    eager = run(tmp_path / "eager", task, config(capture=False))
    assert_close(captured, eager)
    assert read_record(captured / "record.json").skipped == 1
    for one, other in zip(numbers(captured), numbers(eager), strict=True):
        assert one["step"] == other["step"]
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-3, abs=1e-5)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("kind", ["plain", "noisy"])
def test_nothing_waits_for_the_device(kind):
    place, task = Accelerator("cuda", "32-true"), Toy(kind=kind)
    chunk = task.batches(0, 1, place.device, Shard())
    batch = {name: values[0] for name, values in chunk.items()}
    step = TrainStep(task, config(), place, batch)
    batch[NUMBERS] = place.send([step.numbers(0)])[0]
    step(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("capture", [True, False])
def test_resumed_it_goes_on(tmp_path, capture):
    task, training = Toy(kind="noisy"), config(capture=capture)
    whole = run(tmp_path / "whole", task, training)
    for _ in range(3):
        run(tmp_path / "pieces", task, training, resume=True, stop_after=0)
    run(tmp_path / "pieces", task, training, resume=True)
    assert_close(whole, tmp_path / "pieces")
    assert [e["step"] for e in numbers(whole)] == [e["step"] for e in numbers(tmp_path / "pieces")]


@pytest.mark.parametrize("kind", ["deep", "scattered"])
def test_resumed_with_random_depths_it_is_the_same_to_the_bit(tmp_path, kind):
    task, training = Toy(kind=kind), config(capture=True, aux_initial=1e-5)
    whole = run(tmp_path / "whole", task, training)
    for _ in range(3):
        run(tmp_path / "pieces", task, training, resume=True, stop_after=0)
    run(tmp_path / "pieces", task, training, resume=True)
    assert_same_tensors(whole, tmp_path / "pieces")
    assert numbers(whole) == numbers(tmp_path / "pieces")


def graph_bytes():
    """The memory that belongs to CUDA graphs."""
    segments = torch.cuda.memory_snapshot()
    return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0))


def test_graphs_of_all_depths_share_their_memory():
    """The deepest needs most, and the others little more than the memory of their launches."""
    place, task = Accelerator("cuda", "32-true"), Toy(kind="deep", batch_size=4096)
    chunk = task.batches(0, 1, place.device, Shard())
    batch = {name: values[0] for name, values in chunk.items()}
    taken = {}
    for most in (1, 64):
        step = TrainStep(task, config(), place, batch)
        step.module.pool.steps = RandomSteps(1, most)
        step.depths = DepthDraw(step.module, task.seed)
        gc.collect()
        clear_workspaces()
        torch.cuda.empty_cache()
        before = graph_bytes()
        runner = Runner(step, chunk | {NUMBERS: place.send([step.numbers(0)])}, place, 0)
        taken[most] = graph_bytes() - before
        assert len(runner._graphs) == len(step.depths.all())
    assert len(step.depths.all()) == 7
    assert taken[64] < 3 * taken[1]


@pytest.mark.parametrize("kind", ["pooled", "deep"])
def test_it_is_captured_by_itself(tmp_path, kind):
    folder = run(tmp_path / "run", Toy(kind=kind), config())
    assert not [e for e in read_log(folder / "log.jsonl") if e.get("event") == "not captured"]


@pytest.mark.parametrize("precision", ["tf32", "bf16-mixed", "bf16-true", "64-true"])
def test_other_precisions_are_captured(tmp_path, precision):
    folder = run(tmp_path / "run", Toy(), config(precision=precision, capture=True))
    assert math.isfinite(read_record(folder / "record.json").metrics["error"])
