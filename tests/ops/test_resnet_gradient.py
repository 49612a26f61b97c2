"""Both implementations of the potential's gradient against the naive one in float64: value,
gradient, Hessian product and all derivatives of the gradient."""

from itertools import pairwise

import pytest
import torch

from equipool.ops.resnet_gradient import Maps, Spec, make_gradient
from equipool.ops.resnet_gradient import torch as torch_gradient
from equipool.ops.resnet_gradient.naive import naive_value

SIZES = [(7,), (5, 3), (8, 8, 8), (20, 9, 3), (16, 16, 5, 5)]
IN, OUT = 3, 5
IMPLEMENTATIONS = {"torch": (torch.float64, 1e-10), "triton": (torch.float32, 1e-4)}


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request, device):
    """Device, dtype and tolerance."""
    if request.param == "torch":
        return "cpu", *IMPLEMENTATIONS["torch"]
    request.getfixturevalue("forced")
    return device, *IMPLEMENTATIONS["triton"]


def parameters(sizes):
    """Layers, skips and normalisations, flat; all in float64."""
    torch.manual_seed(sum(sizes))
    widths = [IN + OUT, *sizes]
    found = [torch.randn(b, a).double() / a**0.5 for a, b in pairwise(widths)]
    found += [0.3 * torch.randn(b).double() for b in sizes]
    found += [torch.randn(b, a).double() / a**0.5 for a, b in pairwise(widths) if a != b]
    found += [0.3 * torch.randn(b).double() for a, b in pairwise(widths) if a != b]
    found += [1 + 0.2 * torch.randn(b).double() for b in sizes[:-1]]
    return found + [0.2 * torch.randn(b).double() for b in sizes[:-1]]


def network(sizes, flat):
    """What `parameters` are of."""
    flat = iter(flat)
    skipped = [a != b for a, b in pairwise([IN + OUT, *sizes])]
    weights, biases = ([next(flat) for _ in sizes] for _ in range(2))
    skips, shifts = (iter([next(flat) for _ in range(sum(skipped))]) for _ in range(2))
    gammas, betas = ([next(flat) for _ in sizes[:-1]] for _ in range(2))
    maps = Maps(
        list(zip(weights, biases, strict=True)),
        [(next(skips), next(shifts)) if learned else None for learned in skipped],
    )
    return maps, list(zip(gammas, betas, strict=True))


def batch(num_elements, num_rows):
    index = torch.randint(num_rows, (num_elements,)).sort().values
    return torch.randn(num_elements, IN).double(), index, torch.randn(num_rows, OUT).double()


def outcomes(sizes, tensors, index, direction, gradient_of):
    """Value, gradient, Hessian product along a direction, and the derivatives of `sum of direction
    * gradient` by x, y and the parameters."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    x, y, *flat = leaves
    value, gradient, product = gradient_of(*network(sizes, flat), x, index, y, direction)
    by = torch.autograd.grad((gradient * direction).sum(), leaves, materialize_grads=True)
    return [value.detach(), gradient.detach(), product.detach(), *by]


def naively(spec):
    def gradient_of(maps, norms, x, index, y, direction):
        value = naive_value(spec, maps, norms, x, index, y)
        (gradient,) = torch.autograd.grad(value.sum(), y, create_graph=True)
        (product,) = torch.autograd.grad((gradient * direction).sum(), y, retain_graph=True)
        return value, gradient, product

    return gradient_of


def by_operation(spec):
    def gradient_of(maps, norms, x, index, y, direction):
        operation = make_gradient(spec, maps, norms, x, index, len(y))
        with torch.no_grad():
            value, product = operation.value(y), operation.hessian_product(direction, y)
        return value, operation.gradient(y), product

    return gradient_of


def check(sizes, x, index, y, implementation):
    device, dtype, tolerance = implementation
    tensors, direction = [x, y, *parameters(sizes)], torch.randn_like(y)
    expected = outcomes(
        sizes, tensors, index, direction, naively(Spec(sizes, 0.25, 1e-5, torch.float64))
    )
    moved = [tensor.to(device, dtype) for tensor in tensors]
    found = outcomes(
        sizes, moved, index.to(device), direction.to(device, dtype),
        by_operation(Spec(sizes, 0.25, 1e-5, dtype)),
    )  # fmt: skip
    for a, b in zip(found, expected, strict=True):
        assert (a.cpu().double() - b).norm() <= tolerance * b.norm().clamp(min=1e-3)


@pytest.mark.parametrize("sizes", SIZES)
def test_agrees_with_the_naive_one(sizes, implementation):
    check(sizes, *batch(14, 3), implementation)


@pytest.mark.parametrize(("num_elements", "num_rows"), [(1, 1), (1, 4), (3, 9), (0, 2), (9, 1)])
def test_odd_batches(num_elements, num_rows, implementation):
    """One element; more sets than elements, so that some are empty; none at all; one set."""
    check((9, 5, 3), *batch(num_elements, num_rows), implementation)


def test_sets_over_several_parts(implementation, monkeypatch):
    """Chunks of the torch operations, tiles and parts of the kernels."""
    monkeypatch.setattr(torch_gradient, "CPU_ROWS", 7)
    monkeypatch.setattr("equipool.ops.resnet_gradient.triton.LARGEST_PART", 16)
    check((9, 5, 3), *batch(40, 3), implementation)


def test_every_value_read_was_written(implementation, monkeypatch):
    """Memory that is handed out uninitialised is full of NaN here."""

    def poisoned(make):
        def made(*args, **kwargs):
            out = make(*args, **kwargs)
            return out.fill_(torch.nan) if out.is_floating_point() else out

        return made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    check((20, 9, 3), *batch(14, 4), implementation)


def make(sizes, implementation, num_elements=12, num_rows=4):
    """An operation, a y, and what the operation was made of that is learned."""
    device, dtype, _ = implementation
    x, index, y = batch(num_elements, num_rows)
    flat = [tensor.to(device, dtype).requires_grad_() for tensor in parameters(sizes)]
    spec = Spec(sizes, 0.25, 1e-5, dtype)
    operation = make_gradient(
        spec, *network(sizes, flat), x.to(device, dtype), index.to(device), num_rows
    )
    return operation, y.to(device, dtype).requires_grad_(), flat


def test_the_same_every_time(implementation):
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        operation, y, flat = make((20, 9, 3), implementation)
        found.append(torch.autograd.grad(operation.gradient(y).square().sum(), [y, *flat]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_backward_passes_share_nothing(implementation):
    """From an early step or all, for other gradients, and with a Hessian product inside."""
    operation, y, flat = make((9, 5, 3), implementation)
    first = operation.gradient(y)
    second = operation.gradient(y + 0.1 * first)
    expected = torch.autograd.grad(second.sum(), flat, retain_graph=True)
    torch.autograd.grad(first.sum(), flat, retain_graph=True)
    torch.autograd.grad(second.sum(), y, retain_graph=True)
    first.register_hook(lambda by: (operation.hessian_product(by, y.detach()), by)[1])
    found = torch.autograd.grad(second.sum(), flat)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def batched(operation, y):
    gradient = operation.gradient(y)
    units = torch.eye(gradient.numel()).to(gradient).view(-1, *gradient.shape)
    torch.autograd.grad(gradient, y, units, is_grads_batched=True)


def second(operation, y):
    gradient = operation.gradient(y)
    (by_y,) = torch.autograd.grad(gradient.square().sum(), y, create_graph=True)
    torch.autograd.grad(by_y.sum(), y)


@pytest.mark.parametrize("derivative", [batched, second])
def test_what_it_does_not_have_is_refused_with_advice(derivative, implementation):
    operation, y, _ = make((5, 3), implementation)
    with pytest.raises(RuntimeError, match="factored=False"):
        derivative(operation, y)


def test_a_parameter_changed_before_the_backward_is_noticed(implementation):
    operation, y, flat = make((9, 5, 3), implementation)
    gradient = operation.gradient(y)
    with torch.no_grad():
        flat[-1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(gradient.sum(), flat)


def test_the_default_dtype_is_not_read(implementation, request):
    operation, y, flat = make((5, 3), implementation)
    expected = torch.autograd.grad(operation.gradient(y).sum(), flat, retain_graph=True)
    before = torch.get_default_dtype()
    request.addfinalizer(lambda: torch.set_default_dtype(before))
    torch.set_default_dtype(torch.bfloat16)
    found = torch.autograd.grad(operation.gradient(y).sum(), flat)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("kept_parts", [0, 7, 1000])
def test_what_is_kept_changes_no_number(kept_parts, monkeypatch):
    """Nothing, the first evaluations, or all of them."""
    monkeypatch.setattr(torch_gradient, "KEPT_PARTS", kept_parts)
    check((8, 8, 8), *batch(14, 3), ("cpu", *IMPLEMENTATIONS["torch"]))


def test_what_is_kept_is_bounded():
    """At first the products of every evaluation, and later no more than its y."""

    def kept_bytes(num_evaluations):
        storages = {}

        def pack(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        operation, y, _ = make((8, 8, 4), ("cpu", *IMPLEMENTATIONS["torch"]), num_elements=200)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            kept = [operation.gradient(y) for _ in range(num_evaluations)]
        assert len(kept) == num_evaluations
        return sum(storages.values())

    assert kept_bytes(3) > kept_bytes(1) + 200 * 8 * 8
    assert kept_bytes(60) == kept_bytes(20)
