"""Two processes under torchrun train as one that has the whole batch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from runs import Heard, last_tensors, numbers
from torchrun_worker import TASK, TRAINING

from equipool.training import read_record, train

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="torch is built without gloo"),
]

SECONDS = 240
WORKER = Path(__file__).parent / "torchrun_worker.py"


def test_two_processes_train_as_one(tmp_path):
    together, alone = tmp_path / "two", tmp_path / "one"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*command, str(WORKER), str(together)], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    # Threads that outlive the interpreter abort it now and then.
    assert done.stdout.count("gloo threads left: 0") == 2, done.stdout
    train(TASK, TRAINING, alone, device="cpu", progress=Heard())

    record = read_record(together / "record.json")
    assert record.hardware["processes"] == 2
    assert record.pieces == 3
    assert record.skipped == read_record(alone / "record.json").skipped == 1
    first, second = last_tensors(together), last_tensors(alone)
    assert first.keys() == second.keys()
    for name, value in first.items():
        if name.startswith(("model/", "average/", "optimizer/exp_avg/")):
            torch.testing.assert_close(value, second[name], rtol=1e-6, atol=1e-9, msg=name)
    for one, other in zip(numbers(together), numbers(alone), strict=True):
        assert one["step"] == other["step"]
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-5)
        assert one.get("loss", 0) == pytest.approx(other.get("loss", 0), rel=1e-5)
