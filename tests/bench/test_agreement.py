from dataclasses import replace

import pytest
import torch

from equipool.bench.agreement import DisagreementError, Judge, check_within, relative_error
from equipool.bench.cases import Case
from equipool.bench.paths import PATHS, Readout, by_ptr, make_layer
from equipool.bench.record import Agreement

CPU = torch.device("cpu")
CASE = Case(sets=4, elements=5, in_channels=3, out_channels=4, hidden=(7, 5, 3), num_steps=4)
EXACT = Agreement(0.0, 0.0, 0.0, "layer.weight", 0.0, sets=4, elements=20)


@pytest.mark.parametrize("name", ["reference", "equipool-autograd", "equipool"])
def test_our_paths_agree(name):
    errors = Judge(CASE, CPU).judge(PATHS[name], "float32")
    assert 0 < errors.output < 1e-5
    assert max(errors.x_gradient, errors.parameter_gradient) < 1e-4
    assert errors.sets == 4


def test_bf16_is_measured_and_coarser():
    wide = replace(CASE, in_channels=32, out_channels=32, hidden=(64, 32, 32))
    assert 1e-4 < Judge(wide, CPU).judge(PATHS["equipool"], "bf16").output < 5e-2


def wrong(what):
    """The layer, changed a little: in its output, or in the gradient of the elements."""

    def call(layer, x, batch):
        y = by_ptr(layer, Scaled.apply(x) if what == "x" else x, batch)
        changed = what == "output" or (what == "inference" and not torch.is_grad_enabled())
        return 1.001 * y if changed else y

    return Readout(make_layer(CASE), call)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.001 * gradient


@pytest.mark.parametrize(
    ("what", "named"), [("output", "output"), ("inference", "output"), ("x", "gradient by x")]
)
def test_a_wrong_path_is_refused_by_name(what, named):
    path = replace(PATHS["equipool"], name="broken", build=lambda case: wrong(what))
    with pytest.raises(DisagreementError, match=f"broken in float32 is not timed: its {named}"):
        Judge(CASE, CPU).judge(path, "float32")


def frozen_momentum(layer, x, batch):
    """The layer with the right output, and no gradient by its momentum."""
    (name,) = [name for name, _ in layer.named_parameters() if "momentum" in name]
    detached = {name: layer.get_parameter(name).detach()}
    return torch.func.functional_call(layer, detached, (x,), {"ptr": batch.ptr})


def test_a_missing_gradient_of_one_number_is_noticed():
    frozen = replace(
        PATHS["equipool"], build=lambda case: Readout(make_layer(CASE), frozen_momentum)
    )
    with pytest.raises(DisagreementError, match="gradient by the parameters"):
        Judge(CASE, CPU).judge(frozen, "float32")


@pytest.mark.parametrize(
    ("errors", "named"),
    [
        ({"output": 2e-5}, "output"),
        ({"x_gradient": 2e-4}, "gradient by x"),
        ({"parameter_gradient": 2e-4}, "gradient by the parameters"),
        ({"worst_parameter_error": 2e-3}, "gradient by layer.weight"),
        ({"output": float("nan")}, "output"),
    ],
)
def test_what_is_beyond_its_tolerance_is_named(errors, named):
    with pytest.raises(DisagreementError, match=named):
        check_within("equipool", "float32", replace(EXACT, **errors))


def test_what_is_within_passes():
    check_within("equipool", "float32", replace(EXACT, output=9e-6, x_gradient=9e-5))
    check_within("equipool", "bf16", replace(EXACT, output=4e-2))


def test_errors_are_relative_to_all_that_is_expected():
    found = [torch.tensor([3.0]), torch.tensor([4.5])]
    assert relative_error(found, [torch.tensor([3.0]), torch.tensor([4.0])]) == pytest.approx(0.1)


def test_networks_are_judged_by_the_layer_inside_them():
    judge = Judge(replace(CASE, workload="median"), CPU)
    assert judge.judge(PATHS["equipool"], "float32").output < 1e-5


def test_the_same_weights_in_every_form():
    a, b = (make_layer(CASE, factored=factored) for factored in (True, False))
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
