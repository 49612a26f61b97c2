"""A path whose numbers disagree with the reference is not timed."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from equipool.bench.cases import Batch, Case, Mode, Precision, first_sets, make_batch
from equipool.bench.paths import Path, Readout, by_ptr, make_layer
from equipool.bench.record import Agreement
from equipool.bench.steps import LayerStep

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
        self.case = dataclasses.replace(case, workload="layer")
        self.device = device
        self.batch = first_sets(make_batch(self.case, device), MAX_SETS, MAX_ELEMENTS)
        self._reference: LayerStep | None = None
        self._found: dict[tuple[str, Precision], Agreement] = {}

    def judge(self, path: Path, precision: Precision) -> Agreement:
        """The path's errors; raises `DisagreementError` if they are too large."""
        key = (path.name, precision)
        if key not in self._found:
            self._found[key] = self._compare(path, precision)
        check_within(path.name, precision, self._found[key])
        return self._found[key]

    def _compare(self, path: Path, precision: Precision) -> Agreement:
        expected = self.reference()
        found = self._run(path, "training", precision)
        without_gradient = self._run(path, "inference", precision)
        theirs, ours = expected.parameter_gradients(), found.parameter_gradients()
        errors = {name: relative_error([ours[name]], [theirs[name]]) for name in theirs}
        worst = max(errors, key=errors.__getitem__)
        return Agreement(
            output=max(
                relative_error([step.y], [expected.y]) for step in (found, without_gradient)
            ),
            x_gradient=relative_error([found.x.grad], [expected.x.grad]),
            parameter_gradient=relative_error(
                [ours[name] for name in theirs], list(theirs.values())
            ),
            worst_parameter=worst,
            worst_parameter_error=errors[worst],
            sets=self.batch.num_sets,
            elements=self.batch.num_elements,
        )

    def _run(self, path: Path, mode: Mode, precision: Precision) -> LayerStep:
        readout = path.build(self.case).to(self.device)
        step = LayerStep(readout, self.batch, mode, precision, path.kernels)
        prepared = path.prepare(step)
        prepared()
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # before a captured step and its graph are freed
        return step

    def reference(self) -> LayerStep:
        """The right answer."""
        if self._reference is None:
            readout = Readout(make_layer(self.case, factored=False), by_ptr)
            self._reference = LayerStep(
                readout.to(self.device, torch.float64),
                _in_float64(self.batch),
                "training",
                "float32",
                use_kernels=False,
            )
            self._reference()
        return self._reference


def check_within(path: str, precision: Precision, errors: Agreement) -> None:
    """Raise a `DisagreementError` that names the path and the first error beyond its tolerance."""
    output, gradient = TOLERANCES[precision]
    for name, error, tolerance in (
        ("output", errors.output, output),
        ("gradient by x", errors.x_gradient, gradient),
        ("gradient by the parameters", errors.parameter_gradient, gradient),
        (
            f"gradient by {errors.worst_parameter}",
            errors.worst_parameter_error,
            SINGLE_PARAMETER * gradient,
        ),
    ):
        if not error <= tolerance:  # also refuses NaN
            raise DisagreementError(
                f"{path} in {precision} is not timed: its {name} differs from the float64 "
                f"reference by {error:.1e} relative, at most {tolerance:.0e} is allowed"
            )


def relative_error(found: list[Tensor | None], expected: list[Tensor | None]) -> float:
    """Frobenius norm of the difference over that of the expected tensors.

    Example:
        >>> relative_error([torch.tensor([3.0, 4.5])], [torch.tensor([3.0, 4.0])])
        0.1
    """
    a, b = _flat(found), _flat(expected)
    return float((a - b).norm() / b.norm().clamp(min=torch.finfo(torch.float64).tiny))


def _flat(tensors: list[Tensor | None]) -> Tensor:
    present = [tensor.double().flatten() for tensor in tensors if tensor is not None]
    return torch.cat(present)


def _in_float64(batch: Batch) -> Batch:
    return dataclasses.replace(batch, x=batch.x.double(), upstream=batch.upstream.double())
