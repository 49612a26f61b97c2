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


def positive_int(text: str) -> int:
    """Parse an integer of at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def positive_float(text: str) -> float:
    """Parse a number above 0."""
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m equipool.demo",
        description="Train two networks to compute the median of 100 numbers; show the results.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-output"), help="output directory [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed [%(default)s]")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--seconds",
        type=positive_float,
        default=20.0,
        help="approximate training time of each network [%(default)s]",
    )
    budget.add_argument(
        "--steps",
        type=positive_int,
        help="training steps of each network; gives the same numbers in every run of a seed",
    )
    parser.add_argument(
        "--threads",
        type=positive_int,
        default=1,
        help="torch's threads; 1 is best for networks this small [%(default)s]",
    )
    return parser.parse_args(arguments)


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
