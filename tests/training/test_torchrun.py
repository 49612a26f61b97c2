"""Two processes under torchrun train as one that has the whole batch, and resume to the bit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from runs import run
from torchrun_worker import TASK, TRAINING

from equipool.training import read_record
from finished_runs import assert_same_run, last_tensors, numbers

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="torch is built without gloo"),
]

SECONDS = 240
WORKER = Path(__file__).parent / "torchrun_worker.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the runs `whole` and `pieces` of two processes, and `alone` of one."""
    folder = tmp_path_factory.mktemp("torchrun")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*command, str(WORKER), str(folder)], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    # Threads that outlive the interpreter abort it now and then.
    assert done.stdout.count("gloo threads left: 0") == 2, done.stdout
    run(folder, TASK, TRAINING, name="alone")
    return folder


def test_an_interrupted_run_of_two_processes_is_the_uninterrupted_one(trained):
    """Random numbers of inner steps included."""
    record = read_record(trained / "pieces" / "record.json")
    assert len(record.ran_on) == 3
    assert_same_run(trained / "whole", trained / "pieces")


def test_two_processes_train_as_one(trained):
    together, alone = trained / "whole", trained / "alone"
    assert read_record(together / "record.json").hardware["processes"] == 2
    first, second = last_tensors(together), last_tensors(alone)
    assert first.keys() == second.keys()
    for name, value in first.items():
        if name.startswith(("model/", "optimizer/exp_avg/")):
            torch.testing.assert_close(value, second[name], rtol=1e-6, atol=1e-9, msg=name)
    for one, other in zip(numbers(together), numbers(alone), strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-5)
        assert one.get("loss", 0) == pytest.approx(other.get("loss", 0), rel=1e-5)
