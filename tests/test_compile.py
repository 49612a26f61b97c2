"""`torch.compile` takes the layer whole, and what it makes serves batches of every size."""

import pytest
import torch
from torch import nn

import equipool
from cases import assert_near, flatten, make_layer, make_sets, offsets
from equipool import LearnedStart
from equipool.ops import execution
from equipool.solution import recorders

pytestmark = [
    pytest.mark.compile,
    # The compiler does this itself when it meets an autograd function.
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning"),
]

# No two sizes of a batch are equal: the compiler takes equal ones for the same one.
BATCHES = ((2, 0, 3, 1), (4, 5, 1, 2, 3), (7, 2, 9))
LAYOUTS = ("index", "ptr", "padded", "flat mask", "one set")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def batch(layout, sizes):
    """Arguments of the layer: the same sets in each layout, but for the one set of all."""
    sets = make_sets(sizes)
    x, index = flatten(sets)
    if layout == "index":
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
        return x[order], {"index": index[order], "dim_size": len(sets)}
    if layout == "ptr":
        return x, {"ptr": offsets(sets)}
    if layout == "padded":
        length = max(sizes) + 3
        padding = [x.new_full((length - n, 3), 7.0) for n in sizes]
        rows = [torch.cat(pair) for pair in zip(sets, padding, strict=True)]
        return torch.stack(rows), {"mask": torch.arange(length) < torch.tensor(sizes).unsqueeze(-1)}
    if layout == "flat mask":
        x, index = torch.cat([x.new_full((2, 3), 7.0), x]), torch.cat([index.new_zeros(2), index])
        return x, {"index": index, "mask": torch.arange(len(x)) >= 2, "dim_size": len(sets)}
    return x, {}


def tiny_layer(**options):
    return make_layer(hidden=(4, 3), num_steps=2, **options)


def gradients(call, layer, x, arguments):
    """The output, and the gradients by the elements and by every parameter."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = call(x, **arguments)
    y.sin().sum().backward()
    return [y, x.grad, *(parameter.grad for parameter in layer.parameters())]


def values(call, layer, x, arguments):
    with torch.inference_mode():
        return [call(x, **arguments)]


def assert_same(compiled, layer, x, arguments, evaluate=gradients):
    expected = evaluate(layer, layer, x, arguments)
    found = evaluate(compiled, layer, x, arguments)
    for a, b in zip(found, expected, strict=True):
        assert_near(a, b, 1e-12)


def assert_one_graph_serves(layer, batches, backend, evaluate=gradients):
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    assert_same(compiled, layer, *batches[0], evaluate)
    with torch.compiler.set_stance("fail_on_recompile"):
        for x, arguments in batches[1:]:
            assert_same(compiled, layer, x, arguments, evaluate)


@pytest.mark.parametrize(
    ("evaluate", "layout"), [(gradients, "ptr"), (values, "padded")], ids=["training", "inference"]
)
def test_inductor(evaluate, layout):
    """Every kind of operation once: a hidden layer with its norm, one step from a learned start."""
    layer = make_layer(hidden=(4, 3), num_steps=1, start=LearnedStart(4, value=0.1))
    batches = [batch(layout, sizes) for sizes in BATCHES]
    assert_one_graph_serves(layer, batches, "inductor", evaluate)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_graph_for_each_layout(layout):
    batches = [batch(layout, sizes) for sizes in BATCHES]
    assert_one_graph_serves(tiny_layer(), batches, "eager")


def test_a_scaling_restraints_and_a_learned_start():
    layer = tiny_layer(scaling="mean", gtol=0.2, clip_value=0.1, start=LearnedStart(4, value=0.05))
    assert_one_graph_serves(layer, [batch("ptr", sizes) for sizes in BATCHES], "eager")


def test_one_line_says_that_compiling_takes_long(caplog, monkeypatch):
    """Inside a compiled model, whole, once for a number of steps, and never without a compiler."""
    monkeypatch.setattr(execution, "announced", set())
    layer = tiny_layer()
    model = nn.Sequential(nn.Linear(3, 3), layer).double()
    model(make_sets((4,))[0])
    torch.export.export(model, (make_sets((4,))[0],))
    assert not execution.announced
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for sizes in ((4,), (5,)):
        compiled(make_sets(sizes)[0])
    (record,) = [record for record in caplog.records if record.name == "equipool"]
    assert "2 steps" in record.getMessage()


def test_long_sums_keep_their_digits():
    layer, exact = (make_layer(hidden=(8, 4, 3), num_steps=2, dtype=dtype, seed=3)
                    for dtype in (torch.float32, torch.float64))  # fmt: skip
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    sets = make_sets((3, 20_000, 1))
    x, arguments = torch.cat(sets), {"ptr": offsets(sets)}
    assert_near(compiled(x.float(), **arguments).double(), exact(x, **arguments), 1e-6)


class Own(nn.Module):
    """A user's potential, differentiated by torch."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 2)).double()

    def forward(self, x, y):
        return self.net(torch.cat([x, y], dim=-1)).square().sum(-1)


def test_own_potential():
    layer = tiny_layer()
    layer.potential = Own()
    assert_one_graph_serves(layer, [batch("ptr", sizes) for sizes in BATCHES], "aot_eager")


def test_record_inside():
    layer = tiny_layer()

    def loss(x, ptr):
        with equipool.record(diagnostics=True) as solutions:
            y = layer(x, ptr=ptr)
        return y.square().mean() + 0.1 * solutions.aux_loss

    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    found, expected = (
        gradients(call, layer, *batch("ptr", BATCHES[0])) for call in (compiled, loss)
    )
    for a, b in zip(found, expected, strict=True):
        assert_near(a, b, 1e-12)
    assert not recorders.active


def test_record_outside():
    layer = tiny_layer()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x, arguments = batch("ptr", BATCHES[0])
    assert_same(compiled, layer, x, arguments)  # a graph that records nothing
    found = []
    for call in (layer, compiled):
        with equipool.record(diagnostics=False) as solutions:
            call(x, **arguments)
        found.append(torch.autograd.grad(solutions.aux_loss, list(layer.potential.parameters())))
    for a, b in zip(*found, strict=True):
        assert_near(b, a, 1e-12)


def test_training_under_autocast():
    layer = tiny_layer(dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, arguments = batch("ptr", BATCHES[0])
    gradients = []
    for call in (compiled, layer):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(x.float(), **arguments)
        y.square().sum().backward()
        gradients.append(layer.potential.linears[0].weight.grad.clone())
    assert (gradients[0] - gradients[1]).norm() <= 0.02 * gradients[1].norm()


def test_index_without_dim_size_is_refused():
    compiled = torch.compile(tiny_layer(), fullgraph=True, backend="eager")
    x, arguments = batch("index", BATCHES[0])
    with pytest.raises(Exception, match="give dim_size"):
        compiled(x, arguments["index"])
