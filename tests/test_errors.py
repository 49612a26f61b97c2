"""Bad input: the error names the argument, what was found and what was expected."""

import pytest
import torch

import equipool
from cases import make_layer
from equipool import EquilibriumAggregation, Nesterov, ResNetPotential

X = torch.zeros(5, 3, dtype=torch.float64)
INDEX = torch.tensor([0, 0, 1, 1, 1])
PADDED = torch.zeros(2, 4, 3, dtype=torch.float64)


def nested(**options):
    return torch.nested.nested_tensor([X[:2], X[2:]], **options)


# name: (arguments, pieces of the message ...)
BAD_TYPES = {
    "x a list": ({"x": [[1.0, 2.0, 3.0]]}, "x", "list", "tensor"),
    "integer x": ({"x": X.int()}, "x", "torch.int32", "floating-point"),
    "boolean x": ({"x": X.bool()}, "x", "torch.bool", "floating-point"),
    "complex x": ({"x": X.cfloat()}, "x", "torch.complex64", "floating-point"),
    "dtype of x": ({"x": X.float()}, "x", "torch.float32", "torch.float64"),
    "index a list": ({"index": [0, 0, 1, 1, 1]}, "index", "list", "tensor"),
    "float index": ({"index": INDEX.float()}, "index", "torch.float32", "integer"),
    "boolean index": ({"index": INDEX.bool()}, "index", "torch.bool", "integer"),
    "ptr a list": ({"ptr": [0, 5]}, "ptr", "list", "tensor"),
    "float ptr": ({"ptr": torch.tensor([0.0, 5.0])}, "ptr", "float32", "integer"),
    "mask a list": ({"mask": [True] * 5}, "mask", "list", "tensor"),
    "integer mask": ({"mask": INDEX}, "mask", "torch.int64", "torch.bool"),
    "float dim_size": ({"index": INDEX, "dim_size": 2.0}, "dim_size", "2.0", "int"),
}  # fmt: skip
BAD_VALUES = {
    "x of one dim": ({"x": X[0]}, "x", "[3]", "[N, C]"),
    "x of four dims": ({"x": X[None, None]}, "x", "[1, 1, 5, 3]", "[B, L, C]"),
    "channels": ({"x": X[:, :2]}, "x", "2 channels", "in_channels = 3"),
    "padded channels": ({"x": PADDED[..., :1]}, "x", "1 channels", "in_channels = 3"),
    "short index": ({"index": INDEX[:4]}, "index", "[4]", "[5]"),
    "two-dim index": ({"index": INDEX[:, None]}, "index", "[5, 1]", "[5]"),
    "negative index": ({"index": INDEX - 1}, "index", "-1", "from 0"),
    "index too large": ({"index": INDEX, "dim_size": 1}, "index", "value 1", "below 1"),
    "empty ptr": ({"ptr": INDEX[:0]}, "ptr", "[0]", "[B + 1]"),
    "two-dim ptr": ({"ptr": INDEX[None]}, "ptr", "[1, 5]", "[B + 1]"),
    "scalar ptr": ({"ptr": torch.tensor(5)}, "ptr", "[]", "[B + 1]"),
    "falling ptr": ({"ptr": torch.tensor([0, 4, 2, 5])}, "ptr", "decreases", "never"),
    "ptr too short": ({"ptr": torch.tensor([0, 4])}, "ptr", "0 to 4", "0 to 5"),
    "ptr too long": ({"ptr": torch.tensor([0, 6])}, "ptr", "0 to 6", "0 to 5"),
    "ptr not from 0": ({"ptr": torch.tensor([1, 5])}, "ptr", "1 to 5", "0 to 5"),
    "ptr and dim_size": (
        {"ptr": torch.tensor([0, 5]), "dim_size": 2}, "dim_size", "2", "expected 1",
    ),
    "flat mask": ({"mask": INDEX[:4] > 0}, "mask", "[4]", "[5]"),
    "padded mask": ({"x": PADDED, "mask": PADDED[:, :3, 0] > 0}, "mask", "[2, 3]", "[2, 4]"),
    "mask with channels": ({"x": PADDED, "mask": PADDED > 0}, "mask", "[2, 4, 3]", "[2, 4]"),
    "padded and dim_size": ({"x": PADDED, "dim_size": 3}, "dim_size", "3", "expected 2"),
    "one set and dim_size": ({"dim_size": 2}, "dim_size", "2", "expected 1"),
    "negative dim_size": ({"index": INDEX, "dim_size": -1}, "dim_size", "-1", "0 or more"),
    "ptr and index": ({"index": INDEX, "ptr": torch.tensor([0, 5])}, "index", "ptr", "alone"),
    "ptr and mask": ({"mask": INDEX > 0, "ptr": torch.tensor([0, 5])}, "mask", "ptr", "alone"),
    "padded and index": ({"x": PADDED, "index": INDEX}, "index", "padded x", "alone"),
    "padded and ptr": ({"x": PADDED, "ptr": torch.tensor([0, 8])}, "ptr", "padded x", "alone"),
    "nested and index": ({"x": nested(layout=torch.jagged), "index": INDEX}, "index", "nested"),
    "nested and dim_size": (
        {"x": nested(layout=torch.jagged), "dim_size": 3}, "dim_size", "3", "2",
    ),
    "x elsewhere": ({"x": X.to("meta")}, "x", "meta", "cpu", "one device"),
    "index elsewhere": ({"index": INDEX.to("meta")}, "index", "meta", "cpu", "one device"),
    "ptr elsewhere": ({"ptr": torch.tensor([0, 5]).to("meta")}, "ptr", "meta", "cpu", "one device"),
    "mask elsewhere": ({"mask": (INDEX > 0).to("meta")}, "mask", "meta", "cpu", "one device"),
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
        (torch.zeros(2, 3), ValueError, ("y", "[2, 3]", "[2, 4]")),
        (torch.zeros(4), ValueError, ("y", "[4]", "[2, 4]")),
        (torch.zeros(2, 4, device="meta"), ValueError, ("y", "meta", "cpu")),
        ([[0.0] * 4] * 2, TypeError, ("y", "list", "tensor")),
    ],
)
def test_bad_y_of_an_energy(y, error, pieces):
    with pytest.raises(error) as raised:
        make_layer().energy(X, INDEX)(y)
    assert_says(raised, (*pieces, "expected"))


BAD_SETTINGS = {
    "in_channels": (lambda: EquilibriumAggregation(0, 4), ("in_channels", "0", "1 or more")),
    "out_channels": (lambda: EquilibriumAggregation(3, -1), ("out_channels", "-1", "1 or more")),
    "scaling": (lambda: EquilibriumAggregation(3, 4, scaling="max"), ("scaling", "'max'", "log")),
    "scaling later": (lambda: setattr(make_layer(), "scaling", "max"), ("scaling", "'max'", "log")),
    "start's out": (
        lambda: EquilibriumAggregation(3, 4, start=equipool.LearnedStart(3)),
        ("start's out_channels", "3", "expected 4"),
    ),
    "text as in_channels": (
        lambda: EquilibriumAggregation("3", 4), ("in_channels", "'3'", "int of 1 or more"),
    ),
    "float out_channels": (
        lambda: ResNetPotential(3, 4.0), ("out_channels", "4.0", "int of 1 or more"),
    ),
    "text in hidden": (lambda: ResNetPotential(3, 4, ("a",)), ("hidden", "'a'", "int")),
    "steps later": (lambda: setattr(make_layer(), "steps", -3), ("steps", "-3", "0")),
    "potential's in": (
        lambda: EquilibriumAggregation(3, 4, potential=ResNetPotential(2, 4)),
        ("in_channels", "2", "expected 3"),
    ),
    "potential's out": (
        lambda: EquilibriumAggregation(3, 4, potential=ResNetPotential(3, 5)),
        ("out_channels", "5", "expected 4"),
    ),
    "no hidden": (lambda: ResNetPotential(3, 4, hidden=()), ("hidden", "()", "at least one")),
    "hidden of 0": (lambda: ResNetPotential(3, 4, (5, 0)), ("a size of hidden", "0", "1 or more")),
    "reduction": (lambda: ResNetPotential(3, 4, reduction="max"), ("reduction", "'max'", "'mean'")),
    "learning_rate": (lambda: Nesterov(-0.1), ("learning_rate", "-0.1", "more than 0")),
    "learning_rate 0": (lambda: Nesterov(0.0), ("learning_rate", "0.0", "more than 0")),
    "learning_rate nan": (lambda: Nesterov(float("nan")), ("learning_rate", "nan", "more than 0")),
    "learning_rate inf": (lambda: Nesterov(float("inf")), ("learning_rate", "inf", "more than 0")),
    "momentum": (lambda: Nesterov(momentum=1.0), ("momentum", "1.0", "less than 1")),
    "momentum below": (lambda: Nesterov(momentum=-0.1), ("momentum", "-0.1", "at least 0")),
    "momentum nan": (lambda: Nesterov(momentum=float("nan")), ("momentum", "nan", "less than 1")),
    "gtol": (lambda: Nesterov(gtol=-1.0), ("gtol", "-1.0", "0 or more")),
    "clip_value": (lambda: Nesterov(clip_value=0.0), ("clip_value", "0.0", "more than 0")),
    "weight": (lambda: equipool.SquaredNorm(-1.0), ("weight", "-1.0", "more than 0")),
    "fixed weight": (
        lambda: equipool.SquaredNorm(-1.0, learnable=False), ("weight", "-1.0", "0 or more"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "pieces"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_settings(build, pieces):
    with pytest.raises((TypeError, ValueError), match="expected") as raised:
        build()
    assert_says(raised, pieces)


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
