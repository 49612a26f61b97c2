"""What the demonstration found, as the table and the page need it."""

from __future__ import annotations

from dataclasses import dataclass

from equipool.demo.train import History


@dataclass(frozen=True)
class Result:
    """One trained network."""

    method: str
    allowance: str  # what it was given as much of as the first network, where that needs saying
    parameters: int
    history: History
    error: float  # mean squared, on the test sets

    @property
    def name(self) -> str:
        return full_name(self.method, self.allowance)

    @property
    def steps(self) -> int:
        return self.history.num_steps

    @property
    def seconds(self) -> float:
        return self.history.total_seconds


def full_name(method: str, allowance: str) -> str:
    return f"{method} ({allowance})" if allowance else method


@dataclass(frozen=True)
class Row:
    """One line of the table, ready to be shown."""

    name: str
    parameters: str
    steps: str
    seconds: str
    error: str
    ratio: str


HEADINGS = Row("network", "parameters", "steps", "seconds", "test MSE", "ratio")


def table(results: list[Result]) -> list[Row]:
    """A line for each network; ratios are to the error of the first."""
    return [
        Row(
            result.name,
            f"{result.parameters:,}",
            f"{result.steps:,}",
            f"{result.seconds:.1f}",
            f"{result.error:.2e}",
            f"{result.error / results[0].error:.2f}",
        )
        for result in results
    ]
