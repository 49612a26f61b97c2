"""Nothing is lost, whenever the process is killed."""

import multiprocessing
import random
import shutil
import signal

import pytest
from runs import Heard, assert_same_run
from victims import (
    TASK,
    TRAINING,
    die_after,
    die_at_call,
    die_in_the_middle_of_a_file,
    go_on,
    run_out_of_space,
)

from equipool.training import read_log, train
from equipool.training.checkpoint import Checkpoints

pytestmark = pytest.mark.processes

SECONDS = 120


@pytest.fixture(scope="module")
def context():
    """Processes that need not import torch again: they are copies of one that has."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["victims", "lightning.fabric", "torch.utils.tensorboard"])
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(TASK, TRAINING, folder, device="cpu", progress=Heard())
    return folder


def start(context, target, *arguments):
    process = context.Process(target=target, args=arguments)
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        pytest.fail("the process did not end")
    return process.exitcode


def assert_as_if_never_stopped(folder, whole):
    assert (folder / "record.json").exists()
    assert_same_run(folder, whole)
    assert not list(folder.rglob(".*partial*"))


def test_killed_again_and_again_while_it_writes(tmp_path, context, whole):
    draw, folder, deaths = random.Random(0), tmp_path / "run", 0
    while True:
        if draw.random() < 0.3:
            code = start(context, die_in_the_middle_of_a_file, folder, draw.randint(1, 9))
        else:
            call, after = draw.randint(1, 24), draw.random() < 0.5
            code = start(context, die_at_call, folder, call, after)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        deaths += 1
    assert deaths >= 4
    assert_as_if_never_stopped(folder, whole)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_point_of_a_checkpoint(tmp_path, context, whole, after):
    """The second checkpoint, by way of a copy of the run that has the first."""
    first = tmp_path / "first"
    train(TASK, TRAINING, first, device="cpu", progress=Heard(), stop_after=0)
    calls = range(1 + after, 22, 3)  # of the log and the pointers before it, too
    found = set()
    for call in calls:
        folder = tmp_path / f"run{call}"
        shutil.copytree(first, folder)
        assert start(context, die_at_call, folder, call, after) == -signal.SIGKILL
        found.add(Checkpoints(folder).newest(pytest.fail).step)
        if call % 2:
            train(TASK, TRAINING, folder, resume=True, device="cpu", progress=Heard())
            assert_as_if_never_stopped(folder, whole)
    assert found >= {1, 6}


def test_killed_at_any_moment(tmp_path, context, whole):
    draw, folder = random.Random(), tmp_path / "run"
    for _ in range(4):
        code = start(context, die_after, folder, draw.uniform(0.05, 0.8))
        assert code in (0, -signal.SIGKILL)
    assert start(context, go_on, folder) == 0
    assert_as_if_never_stopped(folder, whole)
    assert all(isinstance(entry, dict) for entry in read_log(folder / "log.jsonl"))


def test_a_limit_on_the_size_of_files_is_an_error_that_names_the_file(tmp_path, context, whole):
    folder, report = tmp_path / "run", tmp_path / "report"
    train(TASK, TRAINING, folder, device="cpu", progress=Heard(), stop_after=0)
    assert start(context, run_out_of_space, folder, report) == 0
    assert report.read_text().startswith("StorageError")
    assert str(folder) in report.read_text()
    assert Checkpoints(folder).newest(pytest.fail).step == 1
    train(TASK, TRAINING, folder, resume=True, device="cpu", progress=Heard())
    assert_as_if_never_stopped(folder, whole)
