"""Processes that are killed while they train."""

import os
import signal
import threading
from pathlib import Path

import torch
from toy import Toy, config

from equipool.training import train

TASK = Toy(kind="noisy")
TRAINING = config()


def kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyCall:
    """The n-th call of the functions that share it is the last, before or after its work."""

    def __init__(self, number, after):
        self.left, self.after = number, after

    def wrap(self, function):
        def call(*arguments):
            self.left -= 1
            if self.left == 0 and not self.after:
                kill_me()
            result = function(*arguments)
            if self.left == 0:
                kill_me()
            return result

        return call


def go_on(folder):
    torch.set_num_threads(1)
    train(TASK, TRAINING, folder, resume=True, device="cpu", progress=False)


def die_at_call(folder, number, after):
    """Die at the n-th call that makes files last."""
    deadly = DeadlyCall(number, after)
    os.fsync, os.replace = deadly.wrap(os.fsync), deadly.wrap(os.replace)
    go_on(folder)


class HalfWritten:
    """A file; when half of it is written something happens."""

    def __init__(self, file, happens):
        self.file, self.happens = file, happens

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, content):
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        self.happens()
        self.file.write(content[len(content) // 2 :])


def die_in_the_middle_of_a_file(folder, number):
    """Die when half of the n-th file is written."""
    real, deadly = Path.open, DeadlyCall(number, after=False)

    def open_half(path, mode="r", *arguments, **named):
        file = real(path, mode, *arguments, **named)
        return HalfWritten(file, deadly.wrap(lambda: None)) if mode == "wb" else file

    Path.open = open_half
    go_on(folder)


def die_after(folder, seconds):
    """Die at any moment."""
    timer = threading.Timer(seconds, kill_me)
    timer.daemon = True
    timer.start()
    go_on(folder)


def run_out_of_space(folder, report):
    """Files can be no longer than a kilobyte."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        go_on(folder)
    except OSError as error:
        Path(report).write_text(f"{type(error).__name__} {error}")
