"""A path whose numbers disagree with the reference is not timed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from equipool.bench.cases import Case, Mode, Precision, first_sets, make_batch
from equipool.bench.paths import Path, Readout, by_ptr, make_layer
from equipool.bench.record import Agreement
from equipool.bench.steps import LayerStep
from equipool.comparison.measure import agreement

MAX_SETS = 16
MAX_ELEMENTS = 4096

# Largest relative errors of the output and of the gradients.
TOLERANCES: dict[Precision, tuple[float, float]] = {
    "float32": (1e-5, 1e-4),
    "tf32": (5e-3, 5e-3),
    "bf16": (5e-2, 5e-2),
}

# A single number such as the step size is lost among a million weights, so each parameter is also
# checked by itself. Cancellation makes the error of a single one larger.
SINGLE_PARAMETER = 10


class DisagreementError(Exception):
    """A path computes wrong numbers, so its time would be meaningless."""


class Judge:
    """Compares the paths of a case with the layer in float64, differentiated automatically.

    It uses the first sets of the batch: the output of a set does not depend on the others, and the
    reference for the whole batch would not fit in memory.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        # For a network, the layer inside it is judged, on elements of its own.
        self.case = replace(case, workload="layer")
        self.device = device
        self.batch = first_sets(make_batch(self.case, device), MAX_SETS, MAX_ELEMENTS)
        self._found: dict[tuple[str, Precision], Agreement] = {}

    def judge(self, path: Path, precision: Precision) -> Agreement:
        """The path's errors; raises `DisagreementError` if they are too large."""
        key = (path.name, precision)
        if key not in self._found:
            self._found[key] = self._compare(path, precision)
        check_within(path.name, precision, self._found[key])
        return self._found[key]

    def _compare(self, path: Path, precision: Precision) -> Agreement:
        expected = self.reference
        found, inference = (self._run(path, mode, precision) for mode in ("training", "inference"))
        theirs, ours = expected.parameter_gradients(), found.parameter_gradients()
        errors = {name: relative_error([ours[name]], [theirs[name]]) for name in theirs}
        worst = max(errors, key=errors.__getitem__)
        return Agreement(
            max(relative_error([step.y], [expected.y]) for step in (found, inference)),
            relative_error([found.x.grad], [expected.x.grad]),
            relative_error((ours[name] for name in theirs), theirs.values()), worst, errors[worst],
            sets=self.batch.num_sets, elements=self.batch.num_elements,
        )  # fmt: skip

    def _run(self, path: Path, mode: Mode, precision: Precision) -> LayerStep:
        readout = path.build(self.case).to(self.device)
        step = LayerStep(readout, self.batch, mode, precision, path.kernels)
        prepared = path.prepare(step)
        prepared()
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # before a captured step and its graph are freed
        return step

    @cached_property
    def reference(self) -> LayerStep:
        """The right answer."""
        layer = make_layer(self.case, factored=False).to(self.device, torch.float64)
        x, upstream = self.batch.x.double(), self.batch.upstream.double()
        batch, readout = replace(self.batch, x=x, upstream=upstream), Readout(layer, by_ptr)
        step = LayerStep(readout, batch, "training", "float32", use_kernels=False)
        step()
        return step


def check_within(path: str, precision: Precision, errors: Agreement) -> None:
    """Raise a `DisagreementError` that names the path and the first error beyond its tolerance."""
    output, gradient = TOLERANCES[precision]
    single = SINGLE_PARAMETER * gradient
    for name, error, tolerance in (
        ("output", errors.output, output),
        ("gradient by x", errors.x_gradient, gradient),
        ("gradient by the parameters", errors.parameter_gradient, gradient),
        (f"gradient by {errors.worst_parameter}", errors.worst_parameter_error, single),
    ):
        if not error <= tolerance:  # also refuses NaN
            raise DisagreementError(
                f"{path} in {precision} is not timed: its {name} differs from the float64 "
                f"reference by {error:.1e} relative, at most {tolerance:.0e} is allowed"
            )


def relative_error(found: Iterable[Tensor | None], expected: Iterable[Tensor | None]) -> float:
    """Frobenius norm of the difference over that of the expected tensors."""
    ours, theirs = (
        torch.cat([tensor.flatten() for tensor in part if tensor is not None])
        for part in (found, expected)
    )
    return agreement(ours, theirs).relative_error
