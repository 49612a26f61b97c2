"""Captured steps."""

import math
from functools import partial

import pytest
import torch
from runs import run as run_toy
from toy import Toy, config

from equipool.training import Shard, read_log, read_record
from equipool.training.devices import Accelerator
from equipool.training.step import TrainStep, weights_of
from finished_runs import assert_same_tensors, last_tensors, numbers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

run = partial(run_toy, device="cuda")


@pytest.mark.parametrize("kind", ["plain", "pooled", "deep", "scattered", "noisy"])
def test_a_captured_step_is_the_step(tmp_path, kind):
    captured = run(tmp_path, Toy(kind=kind), config(), name="captured")
    assert not [e for e in read_log(captured / "log.jsonl") if e.get("event") == "not captured"]
    eager = run(tmp_path, Toy(kind=kind), config(capture=False), name="eager")
    weights = (weights_of(last_tensors(folder)) for folder in (captured, eager))
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-5)
    for one, other in zip(numbers(captured), numbers(eager), strict=True):
        assert one["step"] == other["step"]
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-3, abs=1e-5)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("kind", ["plain", "noisy"])
def test_nothing_waits_for_the_device(kind):
    place, task = Accelerator("cuda"), Toy(kind=kind)
    chunk = task.batches(0, 1, place.device, Shard())
    batch = {name: values[0] for name, values in chunk.items()}
    step = TrainStep(task, config(), place, batch)
    step(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.set_rates(1)
        step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", ["noisy", "deep", "scattered"])
def test_resumed_it_is_the_same_to_the_bit(tmp_path, kind):
    task, training = Toy(kind=kind), config(capture=True, aux_initial=1e-5)
    whole = run(tmp_path, task, training, name="whole")
    for stop in (0, 0, 0, None):
        pieces = run(tmp_path, task, training, name="pieces", resume=True, stop_after=stop)
    assert_same_tensors(whole, pieces)
    assert numbers(whole) == numbers(pieces)


@pytest.mark.parametrize("precision", ["tf32", "bf16-mixed"])
def test_other_precisions_are_captured(tmp_path, precision):
    folder = run(tmp_path, Toy(kind="pooled"), config(precision=precision, capture=True))
    assert math.isfinite(read_record(folder / "record.json").metrics["error"])
