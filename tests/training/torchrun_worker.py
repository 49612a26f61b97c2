"""Trains under torchrun: without an interruption, and stopped and resumed."""

import atexit
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from toy import Toy, config

from equipool.training import train

# float64, as Adam divides gradients by their own size: rounding would be all there is to see
TASK, TRAINING = Toy(kind="deep", double=True), config(aux_weight=0.1)


def main(folder):
    torch.set_num_threads(1)
    for name, stop in (("whole", None), ("pieces", 0), ("pieces", 0), ("pieces", None)):
        out = folder / name
        train(TASK, TRAINING, out, True, "cpu", progress=False, stop_after=stop)


def gloo_threads():
    names = []
    for task in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it ended just now
            names.append(task.read_text())
    return sum("gloo" in name for name in names)


def left_threads():
    """Print the gloo threads that are left when the interpreter ends. One that was joined is listed
    until the kernel has cleared it away, which takes a while on a busy machine."""
    end = time.monotonic() + 10
    while gloo_threads() and time.monotonic() < end:
        time.sleep(0.01)
    print("gloo threads left:", gloo_threads(), flush=True)


if __name__ == "__main__":
    atexit.register(left_threads)  # runs after what is registered later
    main(Path(sys.argv[1]))
