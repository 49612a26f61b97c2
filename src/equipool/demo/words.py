"""Sentences made from the numbers, so that the page says what was measured and nothing else."""

from __future__ import annotations

import torch

from equipool.demo.paths import Landscape, Paths
from equipool.demo.results import Result

SAME = 1.1  # errors within this factor are called the same


def compare(first: Result, second: Result, condition: str) -> str:
    """Which of two networks has the smaller test error, and by how much."""
    ratio = second.error / first.error
    if not ratio > 0:
        return f"{condition}, one of the two errors is not finite."
    lower, higher = (first, second) if ratio > 1 else (second, first)
    factor = max(ratio, 1 / ratio)
    if factor < SAME:
        both = f"{first.method} and {second.method}"
        return f"{condition}, the test errors of {both} are about the same."
    return (
        f"{condition}, the test error of {lower.method} is {factor:.1f} times lower than that of "
        f"{higher.method}."
    )


def about_curves(results: list[Result]) -> str:
    """What the learning curves show: the first network against each of the others."""
    first, *others = results
    sentences = []
    for other in others:
        if other.steps == first.steps:
            sentences.append(compare(first, other, f"After {first.steps:,} steps each"))
        else:
            steps = f"{first.steps:,} and {other.steps:,} steps"
            condition = f"After {first.seconds:.3g} seconds each ({steps})"
            sentences.append(compare(first, other, condition))
    longest = others[-1]  # the surest of its step's duration
    slower = first.seconds / first.steps / (longest.seconds / longest.steps)
    sentences.append(f"A training step of {first.method} takes {slower:.1f} times as long.")
    return " ".join(sentences)


def about_energy(paths: Paths, errors: torch.Tensor) -> str:
    """What the energies along the path show."""
    trained, last = paths.trained_steps, paths.num_steps
    start, middle, end = paths.energy[0], paths.energy[trained], paths.energy[-1]
    count = paths.energy.shape[1]
    sentences = [
        f"From the start to step {trained} the energy falls in {int((middle < start).sum())} of "
        f"{count} sets, and from there to step {last} in {int((end < middle).sum())} of them.",
    ]
    ratio = float(errors[last] / errors[trained])
    if not ratio < float("inf"):
        sentences.append(f"The error read off after {last} steps is not finite.")
    elif ratio > SAME:
        sentences.append(
            f"The prediction read off after {last} steps is worse than after the {trained} it was "
            f"trained with: its mean squared error is {_number(ratio)} times as large. "
            "What was learned is a short way downhill, not the lowest point."
        )
    elif ratio < 1 / SAME:
        sentences.append(
            f"The prediction read off after {last} steps is better than after the {trained} it "
            f"was trained with: its mean squared error is {_number(1 / ratio)} times lower."
        )
    else:
        sentences.append(
            f"The prediction read off after {last} steps is about as good as after the {trained} "
            "it was trained with."
        )
    return " ".join(sentences)


def about_landscape(landscape: Landscape) -> str:
    """What the plane of the landscape leaves out."""
    return (
        f"The plane is the one that the path runs closest to: it holds {landscape.share:.1%} of "
        "the path's squared distance from its end."
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
