"""The implicit gradient in other precisions, by kernels, captured and compiled; what is refused."""

import pytest
import torch
from implicit_cases import SIZES, gradients

import equipool
from cases import assert_near, first_seed, flatten, make_layer, make_sets
from equipool import SquaredNorm
from equipool.differentiation import Implicit


@pytest.mark.parametrize("factored", [True, False], ids=["factored", "autograd"])
@pytest.mark.parametrize("kind", ["bfloat16", "autocast"])
def test_half_precision(kind, factored):
    """Products of eight bits: where the search ends at the same minimum, the gradient is the exact
    one as far as they allow."""
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    x, index = flatten(make_sets(SIZES))

    def solve(seed, dtype, method):
        layer = make_layer(learning_rate=0.05, momentum=0.8, num_steps=200, seed=seed, dtype=dtype,
                           factored=factored)  # fmt: skip
        layer.regularizer = SquaredNorm(2.0).to(dtype)  # curved well enough for eight bits
        layer.differentiation = method
        inputs = x.to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, dtype != torch.float64 and kind == "autocast"):
            solution = layer.solve(inputs, index)
        return solution, [inputs, *layer.potential.parameters()]

    short_method = Implicit("cg", 0.1, max_products=20)

    def rests(seed):
        (exact, _), (short, _) = (
            solve(seed, torch.float64, Implicit()),
            solve(seed, dtype, short_method),
        )
        near = (short.y - exact.y).abs().max() < 0.01 * exact.y.abs().max()
        return near and not exact.fallback.any() and not short.fallback.any()

    seed = first_seed(rests)
    found, expected = (
        torch.cat([g.flatten().double() for g in torch.autograd.grad(s.y.sin().sum(), inputs)])
        for s, inputs in (solve(seed, dtype, short_method), solve(seed, torch.float64, Implicit()))
    )
    assert torch.cosine_similarity(found, expected, dim=0) > 0.98


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_in_a_cuda_graph():
    """Nothing is looked at on the host, and what is found out in a replay is reported."""
    layer = make_layer(
        hidden=(5, 3), learning_rate=0.03, momentum=0.8, seed=2, num_steps=60, dtype=torch.float32
    ).cuda()
    x, index = (t.cuda() for t in flatten(make_sets((3, 0, 5, 1), dtype=torch.float32)))
    layer.differentiation = Implicit("cg", 0.1, fallback_steps=2, max_products=8)
    expected = gradients(layer, x, index, dim_size=4)
    mask = torch.ones(len(x), dtype=torch.bool, device="cuda")

    def step():
        layer.zero_grad(set_to_none=True)
        solution = layer.solve(x, index, mask=mask, dim_size=4)
        solution.y.sin().sum().backward()
        return solution.fallback, [parameter.grad for parameter in layer.parameters()]

    fallback, found = equipool.cuda.capture_step(step)()
    for gradient, other in zip(found, list(expected.values())[1:], strict=True):
        assert_near(gradient, other, 1e-3)
    assert fallback.shape == (4,)


@pytest.mark.parametrize("power", [1, 2], ids=["linear", "square"])
def test_a_second_gradient_is_refused(power):
    layer = make_layer(factored=False)
    layer.differentiation = Implicit()
    x = make_sets((3,))[0].requires_grad_()
    with pytest.raises(RuntimeError, match=r"use differentiation=Unrolled\(\)"):
        torch.autograd.grad(layer(x).pow(power).sum(), x, create_graph=True)


def test_transforms_are_refused():
    layer = make_layer(factored=False)
    layer.differentiation = Implicit()
    with pytest.raises(RuntimeError, match=r"torch.func do not pass through Implicit\(\)"):
        torch.func.grad(lambda x: layer(x).sum())(make_sets((3,))[0])


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning")
@pytest.mark.parametrize("factored", [True, False], ids=["factored", "autograd"])
def test_compiled(factored):
    """Every step of the linear solver is taken there, so there are few; one set falls back."""
    layer = make_layer(
        hidden=(5, 3), learning_rate=0.03, momentum=0.8, num_steps=4, factored=factored
    )
    x, index = flatten(make_sets((3, 0, 5, 1)))
    residual = layer.solve(x, index).residual
    layer.differentiation = Implicit(
        "cg", float(residual.max()) * 0.99, fallback_steps=2, max_products=5
    )
    assert layer.solve(x, index).fallback.sum() == 1
    expected = gradients(layer, x, index)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x.requires_grad_()
    layer.zero_grad()
    compiled(x, index, dim_size=4).sin().sum().backward()
    found = {"x": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}
    torch.compiler.reset()
    for name, gradient in expected.items():
        assert_near(found[name], gradient, 1e-12)
