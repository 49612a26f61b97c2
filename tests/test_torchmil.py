"""The pooling and the model for torchmil."""

import inspect

import pytest
import torch

pytest.importorskip("torchmil")
from torchmil.models import ABMIL, MILModelWrapper
from torchmil.nn import AttentionPool

import equipool
from cases import Quadratic, assert_near
from equipool.torchmil import EquilibriumMIL, EquilibriumPool, LocationPool

MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]])


def mean_pool():
    """A pooling whose output, and so every influence, is known."""
    return EquilibriumPool(
        2, potential=Quadratic(), regularizer=0, solver=equipool.Newton(), steps=5
    )


def batch():
    torch.manual_seed(0)
    return torch.randn(4, 4, 2)


def parameters(kind, name):
    found = inspect.signature(getattr(kind, name)).parameters.values()
    return [(one.name, one.default) for one in found]


def test_calls_are_those_of_torchmil():
    for ours, theirs in ((EquilibriumPool, AttentionPool), (EquilibriumMIL, ABMIL)):
        for name in ("forward", *(("compute_loss", "predict") if ours is EquilibriumMIL else ())):
            assert parameters(ours, name) == parameters(theirs, name)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.uint8])
def test_the_output_is_that_of_the_layer_whatever_the_padding(dtype):
    pool, x = EquilibriumPool(2, 3).eval(), batch()
    z = pool(x, MASK.to(dtype))
    garbage = torch.where(MASK.bool().unsqueeze(-1), x, 1e6)
    wider = torch.cat([garbage, torch.full((4, 3, 2), -1e6)], 1)
    mask = torch.cat([MASK, torch.zeros(4, 3, dtype=torch.long)], 1)
    torch.testing.assert_close(pool(wider, mask.to(dtype)), z)
    for number, size in enumerate(MASK.sum(1).tolist()):
        alone = pool.solve(x[number, :size]).y
        torch.testing.assert_close(z[number : number + 1], alone)
    torch.testing.assert_close(pool(x), pool(x, torch.ones(4, 4)))


def test_attention_is_how_far_the_output_moves_without_the_element():
    pool, x = mean_pool(), batch()
    z, attention = pool(x, MASK, return_att=True)
    assert attention.shape == (4, 4)
    assert (attention[MASK == 0] == 0).all()
    for bag, element in ((0, 1), (1, 3)):
        size = int(MASK[bag].sum())
        kept = [one for one in range(size) if one != element]
        moved = x[bag, kept].mean(0) - z[bag]
        torch.testing.assert_close(attention[bag, element], moved.norm(), atol=1e-5, rtol=1e-4)


def test_the_pool_of_locations():
    torch.manual_seed(0)
    pool, x = LocationPool(3).eval(), torch.randn(2, 6, 3)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    z, attention = pool(X=x, mask=mask, return_att=True)
    assert torch.equal(z, pool(x, mask))
    assert_near(z[0], equipool.LocationPooling.forward(pool, x[0, :3])[0], 1e-5)
    assert attention.bool().equal(mask.bool())


def test_diagnostics_take_the_pooling():
    pool, x = mean_pool(), batch()
    assert equipool.laplace(pool, x).definite.all()
    assert equipool.diagnostics.path_independence(pool, x, steps=(1, 2)).rows[-1].converged == 1


def test_the_model_attributes_its_logit_to_the_elements():
    model = EquilibriumMIL((2,)).eval()
    model.pool = mean_pool()
    x = batch()
    logits, attention = model.predict(x, MASK)
    torch.testing.assert_close(logits, model(x, MASK))
    without = x[1, [0, 2, 3]].mean(0)
    expected = logits[1] - model.classifier(without).squeeze()
    torch.testing.assert_close(attention[1, 1], expected, atol=1e-5, rtol=1e-4)


def test_the_model_learns_with_the_calls_of_torchmils_trainer():
    torch.manual_seed(0)
    model = EquilibriumMIL((3,), 4, feat_ext=torch.nn.Linear(3, 5))
    wrapped = MILModelWrapper(model)
    x, mask = torch.randn(16, 6, 3), torch.ones(16, 6)
    y = (torch.arange(16) % 2).float()
    x[y == 1, 0] += 4
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    history = []
    for _ in range(25):
        _, losses = wrapped.compute_loss({"X": x, "Y": y, "mask": mask})
        loss = sum(losses.values())
        history.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert history[-1] < 0.8 * history[0]
    assert all(parameter.grad is not None for parameter in model.parameters())
