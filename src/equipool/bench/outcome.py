"""What came of a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from equipool.bench.cases import Case, Mode, Precision

Status = Literal["timed", "unavailable", "disagrees", "out of memory", "failed"]


class UnavailableError(Exception):
    """A path that cannot run here, and why."""


class DisagreementError(Exception):
    """A path whose numbers are wrong, so that its time would say nothing."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one step."""

    median: float
    lower_quartile: float
    upper_quartile: float
    fastest: float
    slowest: float
    repeats: int


@dataclass(frozen=True)
class Agreement:
    """Relative errors, in the Frobenius norm, against the float64 reference."""

    output: float
    x_gradient: float
    parameter_gradient: float
    """Of all parameters together."""

    worst_parameter: str
    worst_parameter_error: float
    sets: int
    elements: int


@dataclass(frozen=True)
class Floor:
    """The least that the operation can take at the rates measured in the same run."""

    multiply_adds: float
    bytes: float
    arithmetic_ms: float
    traffic_ms: float


@dataclass(frozen=True)
class Row:
    """One line of a record."""

    case: Case
    path: str
    precision: Precision
    mode: Mode
    status: Status
    reason: str = ""
    timing: Timing | None = None
    peak_bytes: int | None = None
    """Most memory held at a time for tensors: inputs, parameters, their gradients and the rest."""

    agreement: Agreement | None = None
    floor: Floor | None = None
