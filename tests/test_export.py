"""Exported, the layer computes the same where equipool is not installed."""

import functools
import re
import subprocess
import sys

import onnxruntime
import pytest
import torch
from torch import nn
from torch.export import Dim

from cases import assert_near, flatten, make_layer, make_sets, offsets
from python_blocks import ROOT, run_page

pytestmark = [
    pytest.mark.compile,
    # The compiler does this itself when it meets an autograd function.
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning"),
    # The exporter to ONNX, of its own code.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]

EXAMPLE = (2, 3, 1, 7, 2)
BATCHES = ((4, 5, 1, 0, 2, 3), (7, 2, 9), (0, 1), (1, 0, 0, 30))
PAGE = "docs/export.md"


class ByPtr(nn.Module):
    sizes = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, ptr):
        return self.layer(x, ptr=ptr)

    @staticmethod
    def inputs(sizes):
        sets = make_sets(sizes, dtype=torch.float32)
        return torch.cat(sets), offsets(sets)


class ByIndex(ByPtr):
    """As many sets as there are rows of a third input, as beside the features of each set."""

    sizes = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})

    def forward(self, x, index, features):
        return self.layer(x, index, dim_size=features.shape[0]) + features

    @staticmethod
    def inputs(sizes):
        x, index = flatten(make_sets(sizes, dtype=torch.float32))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
        return x[order], index[order], torch.ones(len(sizes), 1)


def make_model(form, **options):
    layer = make_layer(hidden=(4, 3), num_steps=2, dtype=torch.float32, **options)
    return form(layer).eval()


def program_of(model):
    return torch.export.export(model, model.inputs(EXAMPLE), dynamic_shapes=model.sizes)


def session_of(model, path):
    torch.onnx.export(
        model, model.inputs(EXAMPLE), path,
        dynamo=True, dynamic_shapes=model.sizes, verbose=False,
    )  # fmt: skip
    return onnxruntime.InferenceSession(path)


def outputs(session, tensors):
    names = [node.name for node in session.get_inputs()]
    arrays = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
    (y,) = session.run(None, arrays)
    return torch.from_numpy(y)


def run_elsewhere(script, folder, *forbidden):
    """Run a script in a Python of its own that cannot import some packages."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({forbidden!r}))"
    command = f"{hide}; import runpy; runpy.run_path({str(script)!r})"
    return subprocess.run(
        [sys.executable, "-c", command], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_program():
    """Neither its graph nor what it calls names anything of ours."""
    model = make_model(ByIndex, scaling="sum")
    exported = program_of(model)
    for module in exported.graph_module.modules():
        for node in module.graph.nodes:
            if node.op == "call_function":
                assert node.target.__module__.split(".")[0] in {"torch", "_operator", "math"}
    program = exported.module()
    for sizes in BATCHES:
        inputs = model.inputs(sizes)
        with torch.no_grad():
            assert_near(program(*inputs), model(*inputs), 1e-6)


def test_onnx(tmp_path):
    """A padded batch is exported by the page, as a program and to ONNX."""
    model = make_model(ByPtr, scaling="mean")
    session = session_of(model, tmp_path / "pool.onnx")
    for sizes in (*BATCHES, (3,)):
        inputs = model.inputs(sizes)
        with torch.no_grad():
            assert_near(outputs(session, inputs), model(*inputs), 1e-5)


def test_page(tmp_path, monkeypatch):
    """The page's examples, and its scripts where what they must not need is missing."""
    monkeypatch.chdir(tmp_path)
    # What the compiler makes of the layer is tested elsewhere; here, that it takes it whole.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    run_page(PAGE)
    text = (ROOT / PAGE).read_text()
    scripts = dict(re.findall(r'^```python title="(.*?)"\n(.*?)^```$', text, re.DOTALL | re.M))
    assert set(scripts) == {"load.py", "serve.py"}
    for name, script in scripts.items():
        (tmp_path / name).write_text(script)
    for name, forbidden in (("load.py", ["equipool"]), ("serve.py", ["equipool", "torch"])):
        result = run_elsewhere(name, tmp_path, *forbidden)
        assert result.returncode == 0, result.stderr
