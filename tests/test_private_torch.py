"""Every part of torch that is used beyond its public interface is there, and does what it did."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from equipool import private_torch
from equipool.ops.execution import is_exporting

PRIVATE = re.compile(r"\btorch(\.\w+)*\._\w+")


def test_all_of_it_is_in_one_file():
    """Beside the operations on lists of tensors, which torch's optimisers are made of."""
    own = Path(private_torch.__file__)
    found = {
        (path.name, match.group())
        for path in own.parent.rglob("*.py")
        for match in PRIVATE.finditer(path.read_text(encoding="utf-8"))
        if path != own and "_foreach_" not in match.group()
    }
    assert not found
    assert all(hasattr(torch, f"_foreach_{name}") for name in ("div_", "lerp_", "norm"))


def test_transforms_and_batches_are_recognised():
    seen = []

    def look(x):
        seen.append((private_torch.is_transforming(), private_torch.stands_for_several(x)))
        return x * 1

    x = torch.ones(2, requires_grad=True)
    look(x)
    torch.func.vmap(look)(x)
    y = x * 1
    y.register_hook(look)
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    assert seen == [(False, False), (True, False), (False, True)]


def test_dispatch_modes_are_counted():
    assert not private_torch.is_dispatch_mode_active()
    with TorchDispatchMode():
        assert private_torch.is_dispatch_mode_active()


def test_backward_passes_have_numbers():
    seen = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda _: seen.append(private_torch.current_backward()))
    for _ in range(2):
        x.sum().backward()
    assert private_torch.current_backward() == -1
    assert min(seen) >= 0
    assert len(set(seen)) == 2


def test_hooks_of_all_modules_are_found():
    register = (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
        nn.modules.module.register_module_full_backward_pre_hook,
    )
    for number, one in enumerate(register):
        assert not any(private_torch.GLOBAL_HOOKS)
        hook = one(lambda *_: None)
        assert any(private_torch.GLOBAL_HOOKS)
        assert any(private_torch.GLOBAL_BACKWARD_HOOKS) == (number >= 2)
        hook.remove()


def test_dropouts_are_recognised():
    modules = nn.Dropout(), nn.AlphaDropout(), nn.ReLU()
    assert [isinstance(m, private_torch.Dropout) for m in modules] == [True, True, False]


def test_a_profile_sees_allocations():
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        torch.zeros(1 << 20)
    events = [e for e in private_torch.profiled_events(profile) if e.name() == "[memory]"]
    assert max(event.nbytes() for event in events) >= 4 << 20
    assert all(event.start_ns() > 0 for event in events)


@pytest.mark.compile
def test_only_an_export_is_an_export():
    class Look(nn.Module):
        def forward(self, x):
            return x + 1 if is_exporting() else x

    x = torch.zeros(1)
    assert not torch.compile(Look().forward, backend="eager")(x)
    assert torch.export.export(Look(), (x,)).module()(x) == 1


def test_importing_the_layer_does_not_import_the_compiler():
    """It takes seconds; `equipool predict` waits for every import."""
    code = "import sys, equipool; equipool.EquilibriumAggregation; equipool.RandomSteps(1, 2)"
    code += "; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
