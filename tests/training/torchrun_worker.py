"""Trains under torchrun: without an interruption, and stopped and resumed."""

import atexit
import sys
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


def left_threads():
    """Print the gloo threads that are left when the interpreter ends."""
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    print("gloo threads left:", sum("gloo" in name for name in names), flush=True)


if __name__ == "__main__":
    atexit.register(left_threads)  # runs after what is registered later
    main(Path(sys.argv[1]))
