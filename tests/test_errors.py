"""Bad input: the error names the argument, what was found and what was expected."""

import pytest
import torch

from cases import make_layer
from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    FixedSteps,
    Implicit,
    LearnedStart,
    Nesterov,
    Newton,
    NormalStart,
    RandomSteps,
    ResNetPotential,
    SafeguardedNesterov,
    SquaredNorm,
    ToTolerance,
    Truncated,
)
from equipool.linear_solvers import ConjugateGradients

X = torch.zeros(5, 3, dtype=torch.float64)
INDEX = torch.tensor([0, 0, 1, 1, 1])
PADDED = torch.zeros(2, 4, 3, dtype=torch.float64)


def nested(**options):
    return torch.nested.nested_tensor([X[:2], X[2:]], **options)


# name: (arguments, pieces of the message ...)
BAD_TYPES = {
    "x a list": ({"x": [[1.0, 2.0, 3.0]]}, "x", "list", "tensor"),
    "integer x": ({"x": X.int()}, "x", "torch.int32", "floating-point"),
    "dtype of x": ({"x": X.float()}, "x", "torch.float32", "torch.float64"),
    "index a list": ({"index": [0, 0, 1, 1, 1]}, "index", "list", "tensor"),
    "float index": ({"index": INDEX.float()}, "index", "torch.float32", "integer"),
    "integer mask": ({"mask": INDEX}, "mask", "torch.int64", "torch.bool"),
    "float dim_size": ({"index": INDEX, "dim_size": 2.0}, "dim_size", "2.0", "int"),
}  # fmt: skip
BAD_VALUES = {
    "x of one dim": ({"x": X[0]}, "x", "[3]", "[N, C]"),
    "x of four dims": ({"x": X[None, None]}, "x", "[1, 1, 5, 3]", "[B, L, C]"),
    "channels": ({"x": X[:, :2]}, "x", "2 channels", "in_channels = 3"),
    "short index": ({"index": INDEX[:4]}, "index", "[4]", "[5]"),
    "negative index": ({"index": INDEX - 1}, "index", "-1", "from 0"),
    "index too large": ({"index": INDEX, "dim_size": 1}, "index", "value 1", "below 1"),
    "empty ptr": ({"ptr": INDEX[:0]}, "ptr", "[0]", "[B + 1]"),
    "falling ptr": ({"ptr": torch.tensor([0, 4, 2, 5])}, "ptr", "decreases", "never"),
    "ptr too short": ({"ptr": torch.tensor([0, 4])}, "ptr", "0 to 4", "0 to 5"),
    "ptr and dim_size": (
        {"ptr": torch.tensor([0, 5]), "dim_size": 2}, "dim_size", "2", "expected 1",
    ),
    "flat mask": ({"mask": INDEX[:4] > 0}, "mask", "[4]", "[5]"),
    "padded mask": ({"x": PADDED, "mask": PADDED[:, :3, 0] > 0}, "mask", "[2, 3]", "[2, 4]"),
    "padded and dim_size": ({"x": PADDED, "dim_size": 3}, "dim_size", "3", "expected 2"),
    "negative dim_size": ({"index": INDEX, "dim_size": -1}, "dim_size", "-1", "0 or more"),
    "ptr and index": ({"index": INDEX, "ptr": torch.tensor([0, 5])}, "index", "ptr", "alone"),
    "padded and index": ({"x": PADDED, "index": INDEX}, "index", "padded x", "alone"),
    "padded and ptr": ({"x": PADDED, "ptr": torch.tensor([0, 8])}, "ptr", "padded x", "alone"),
    "nested and index": ({"x": nested(layout=torch.jagged), "index": INDEX}, "index", "nested"),
    "nested and dim_size": (
        {"x": nested(layout=torch.jagged), "dim_size": 3}, "dim_size", "3", "2",
    ),
    "x elsewhere": ({"x": X.to("meta")}, "x", "meta", "cpu", "one device"),
    "padded mask elsewhere": (
        {"x": PADDED, "mask": (PADDED[..., 0] > 0).to("meta")}, "mask", "meta", "cpu", "one device",
    ),
}  # fmt: skip


def assert_says(raised, pieces):
    for piece in pieces:
        assert piece in str(raised.value)


@pytest.mark.parametrize("call", ["forward", "solve", "energy"])
@pytest.mark.parametrize("name", [*BAD_TYPES, *BAD_VALUES])
def test_bad_batches(name, call):
    error = TypeError if name in BAD_TYPES else ValueError
    arguments, *pieces = (BAD_TYPES | BAD_VALUES)[name]
    arguments = {"x": X, **arguments}
    with pytest.raises(error) as raised:
        getattr(make_layer(), call)(**arguments)
    assert_says(raised, (*pieces, "expected"))


def narrowed():
    first, length = torch.tensor([0, 1]), torch.tensor([2, 2])
    return torch.nested.narrow(PADDED, 1, first, length, layout=torch.jagged)


NESTED = {
    "strided": nested,
    "narrowed": narrowed,
    "transposed": lambda: nested(layout=torch.jagged).transpose(1, 2),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", NESTED.values(), ids=NESTED)
def test_nested_of_another_kind(kind):
    with pytest.raises(ValueError, match="jagged") as raised:
        make_layer()(kind())
    assert_says(raised, ("x is a nested tensor", "expected", "[B, j, C]"))


@pytest.mark.parametrize(
    ("y", "error", "pieces"),
    [
        (torch.zeros(3, 4), ValueError, ("y", "[3, 4]", "[2, 4]")),
        (torch.zeros(2, 4, device="meta"), ValueError, ("y", "meta", "cpu")),
        ([[0.0] * 4] * 2, TypeError, ("y", "list", "tensor")),
    ],
)
def test_bad_y_of_an_energy(y, error, pieces):
    with pytest.raises(error) as raised:
        make_layer().energy(X, INDEX)(y)
    assert_says(raised, (*pieces, "expected"))


NAN, INF = float("nan"), float("inf")
# What is built, an argument, its bad values, and what is expected of it.
BAD_SETTINGS = [
    (lambda size: EquilibriumAggregation(size, 4), "in_channels", (0, "3", 2.5), "int of 1"),
    (lambda size: EquilibriumAggregation(3, size), "out_channels", (-1,), "1 or"),
    (lambda scaling: EquilibriumAggregation(3, 4, scaling=scaling), "scaling", ("max",), "'log'"),
    (lambda scaling: setattr(make_layer(), "scaling", scaling), "scaling", ("max",), "'log'"),
    (
        lambda steps: setattr(make_layer(), "steps", steps),
        "steps",
        (-3, 2.5, True, "3"),
        "0 or more",
    ),
    (lambda size: ResNetPotential(3, size), "out_channels", (4.0,), "int of 1"),
    (lambda hidden: ResNetPotential(3, 4, hidden), "hidden", ((),), "at least one"),
    (lambda hidden: ConvexPotential(3, 4, hidden), "hidden", ((),), "at least one"),
    (lambda size: ResNetPotential(3, 4, (5, size)), "a size of hidden", (0, "a"), "int of 1"),
    (lambda reduction: ResNetPotential(3, 4, reduction=reduction), "reduction", ("max",), "'mean'"),
    (lambda rate: ResNetPotential(3, 4, dropout=rate), "dropout", (-0.1, 1.0, NAN), "less"),
    (lambda std: ResNetPotential(3, 4, bias_std=std), "bias_std", (-0.1, NAN, INF), "0 or"),
    (Nesterov, "learning_rate", (-0.1, 0.0, NAN, INF), "more than 0"),
    (Nesterov, "momentum", (1.0, -0.1, NAN), "at least 0 and less than 1"),
    (Nesterov, "gtol", (-1.0, NAN), "0 or more"),
    (Nesterov, "clip_value", (0.0,), "more than 0"),
    (Nesterov, "max_step", (0,), "more than 0"),
    (Newton, "damping", (0.0, -1.0, NAN, INF), "more than 0"),
    (Newton, "num_steps", (0, -1, 1.5, True), "int of 1 or more"),
    (Newton, "after", (0.125,), "an instance of Solver"),
    (SafeguardedNesterov, "learning_rate", (0.0, -1.0, NAN, INF), "more than 0"),
    (Truncated, "num_steps", (0, -1, 2.0, True), "int of 1 or more"),
    (FixedSteps, "num_steps", (-1, 2.5, True, "3", FixedSteps, None), "int of 0 or more"),
    (FixedSteps, "tolerance", (-1e-3, NAN), "0 or more"),
    (ToTolerance, "max_steps", (-1, 2.5, True, "3", ToTolerance, None), "int of 0 or more"),
    (ToTolerance, "tolerance", (-1e-3, NAN), "0 or more"),
    (RandomSteps, "min_steps", (0, 2.5), "int of 1 or more"),
    (RandomSteps, "max_steps", (4, True), "int of 5 or more"),
    (lambda std: NormalStart(4, std), "std", (-1.0, NAN, INF), "0 or more"),
    (Implicit, "tolerance", (-1.0, NAN), "0 or more"),
    (Implicit, "fallback_steps", (0,), "int of 1 or more"),
    (Implicit, "max_products", (0,), "int of 1 or more"),
    (Implicit, "linear_solver", ("lu",), "'cg' or 'cholesky'"),
    (SquaredNorm, "weight", (-1.0, 0.0), "more than 0"),
    (ConjugateGradients, "max_steps", (0,), "expected"),
    (ConjugateGradients, "tolerance", (0.0, 0.5), "expected"),
    (lambda weight: SquaredNorm(weight, learnable=False), "weight", (-1.0,), "0 or more"),
]


@pytest.mark.parametrize(
    ("build", "name", "bad", "expected"),
    [(build, name, one, expected) for build, name, bad, expected in BAD_SETTINGS for one in bad],
)
def test_bad_settings(build, name, bad, expected):
    with pytest.raises((TypeError, ValueError), match="expected") as raised:
        build(**{name: bad}) if isinstance(build, type) else build(bad)
    assert_says(raised, (f"{name} is {bad!r}", expected))


@pytest.mark.parametrize(
    ("part", "channels", "message"),
    [
        ("start", LearnedStart(3), "the start's out_channels is 3, expected 4"),
        ("potential", ResNetPotential(2, 4), "the potential's in_channels is 2, expected 3"),
        ("potential", ConvexPotential(3, 5), "the potential's out_channels is 5, expected 4"),
    ],
)
def test_parts_of_another_size(part, channels, message):
    with pytest.raises(ValueError, match=message):
        EquilibriumAggregation(3, 4, **{part: channels})


class Wrong(torch.nn.Module):
    """A potential that returns another shape than one value for each element."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def forward(self, x, y):
        values = (x.sum(-1, keepdim=True) - y).square()
        return {"a number": values.sum(), "[N, K]": values, "[N, 1]": values[:, :1]}[self.shape]


@pytest.mark.parametrize("shape", ["a number", "[N, K]", "[N, 1]"])
def test_a_potential_of_the_wrong_shape(shape):
    layer = EquilibriumAggregation(3, 4, potential=Wrong(shape))
    with pytest.raises(ValueError, match="potential returned shape") as raised:
        layer(X.float(), INDEX)
    assert_says(raised, ("expected [5]",))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_check_finite(value):
    layer = EquilibriumAggregation(3, 4, check_finite=True)
    x = torch.randn(5, 3)
    layer(x, INDEX)
    x[2, 1] = value
    for call in (layer, layer.solve):
        with pytest.raises(ValueError, match="x has non-finite values, expected"):
            call(x, INDEX)
    layer(x, INDEX, mask=torch.arange(5) != 2)  # what the mask hides may be anything


def test_autocast_does_not_bring_float64_and_float32_together():
    layer = make_layer(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="x has dtype"):
        layer(X)
