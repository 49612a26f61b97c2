"""`python -m equipool.demo`: train, print a table, write the pictures and the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from equipool.extras import advice

NEEDED = {"report": ("matplotlib", "jinja2"), "cli": ("rich",)}


def positive_int(text: str) -> int:
    """An argument that is a whole number, 1 or more."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def positive_float(text: str) -> float:
    """An argument that is a number above 0."""
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m equipool.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--seconds", type=positive_float, default=28.0, help="training time of each network"
    )
    budget.add_argument(
        "--steps",
        type=positive_int,
        help="training steps of each network, instead: the same numbers on every run of a seed",
    )
    parser.add_argument(
        "--threads",
        type=positive_int,
        default=1,
        help="of torch; for tensors this small, 1 is best",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; the exit status."""
    options = parse(arguments)
    if (message := advice("The demonstration", NEEDED)) is not None:
        print(message, file=sys.stderr)
        return 1
    # these need the extras
    import torch

    from equipool.demo.show import show
    from equipool.demo.study import Plan

    torch.set_num_threads(options.threads)
    show(Plan(seed=options.seed, seconds=options.seconds, steps=options.steps), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
