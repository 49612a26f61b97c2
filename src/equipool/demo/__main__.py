"""`python -m equipool.demo`: train, print a table, write pictures and a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from equipool.extras import advice

NEEDED = {
    "report": ("matplotlib", "jinja2"), "cli": ("rich",), "train": ("lightning", "safetensors"),
}  # fmt: skip


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m equipool.demo",
        description="Train two networks to compute the median of 100 numbers; show the results.",
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("demo-output"), help="output directory [%(default)s]")
    add("--seed", type=int, default=0, help="random seed [%(default)s]")
    add("--threads", type=int, default=1,
        help="torch's threads; 1 is best for networks this small [%(default)s]")  # fmt: skip
    add = parser.add_mutually_exclusive_group().add_argument
    add("--seconds", type=float, default=20.0,
        help="approximate training time of each network [%(default)s]")  # fmt: skip
    add("--steps", type=int,
        help="training steps of each network; the same numbers in every run of a seed")  # fmt: skip
    options = parser.parse_args(arguments)
    for name in ("threads", "seconds", "steps"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} is {value}, expected more than 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns the exit status."""
    options = parse(arguments)
    if (message := advice("The demonstration", NEEDED)) is not None:
        print(message, file=sys.stderr)
        return 1
    # these need the extras
    import torch

    from equipool.demo.page import show
    from equipool.demo.study import Plan

    torch.set_num_threads(options.threads)
    try:
        show(Plan(seed=options.seed, seconds=options.seconds, steps=options.steps), options.out)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
