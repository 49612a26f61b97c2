"""Processes that are killed while they train."""

import os
import signal
from pathlib import Path

import torch
from toy import Toy, config

from equipool.training import train

TASK = Toy(kind="noisy")
TRAINING = config()


def kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


def resume(folder):
    torch.set_num_threads(1)
    train(TASK, TRAINING, folder, resume=True, device="cpu", progress=False)


def die_at_call(folder, number, after):
    """Die at the n-th call that makes a file last, before or after its work."""
    left = [number]

    def deadly(function):
        def call(*arguments):
            left[0] -= 1
            if left[0] == 0 and not after:
                kill_me()
            result = function(*arguments)
            if left[0] == 0:
                kill_me()
            return result

        return call

    os.fsync, os.replace = deadly(os.fsync), deadly(os.replace)
    resume(folder)


def run_out_of_space(folder, report):
    """Files can be no longer than a kilobyte."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        resume(folder)
    except OSError as error:
        Path(report).write_text(f"{type(error).__name__} {error}")
