"""Nothing is lost, whenever the process is killed."""

import multiprocessing
import signal

import pytest
from runs import run
from victims import TASK, TRAINING, die_at_call, resume, run_out_of_space

from equipool.training import RunFolder
from finished_runs import assert_same_run

pytestmark = pytest.mark.processes

SECONDS = 120


@pytest.fixture(scope="module")
def start():
    """Runs a function in a process that need not import torch again; its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["victims", "torch._dynamo"])

    def call(target, *arguments):
        process = context.Process(target=target, args=arguments)
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            pytest.fail("the process did not end")
        return process.exitcode

    return call


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"), TASK, TRAINING)


def assert_as_if_never_stopped(folder, whole):
    assert (folder / "record.json").exists()
    assert_same_run(folder, whole)
    assert not list(folder.rglob(".*partial*"))


def test_killed_again_and_again_while_it_writes(tmp_path, start, whole):
    folder = tmp_path / "run"
    for call, after in ((2, False), (3, True), (5, False), (9, True), (8, False), (7, True)):
        assert start(die_at_call, folder, call, after) == -signal.SIGKILL
    assert start(resume, folder) == 0
    assert_as_if_never_stopped(folder, whole)


def test_a_full_disk_is_an_error_that_names_the_file_and_nothing_is_lost(tmp_path, start, whole):
    report = tmp_path / "report"
    folder = run(tmp_path, TASK, TRAINING, stop_after=0)
    assert start(run_out_of_space, folder, report) == 0
    assert report.read_text().startswith("StorageError")
    assert str(folder) in report.read_text()
    assert RunFolder(folder).newest().step == 1
    assert_as_if_never_stopped(run(tmp_path, TASK, TRAINING, resume=True), whole)
