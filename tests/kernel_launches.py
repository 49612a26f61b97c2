"""What kernels are launched with, to compile them for a GPU where there is none."""

import json
import sys
from contextlib import contextmanager

import torch

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
         torch.float64: "fp64", torch.int64: "i64", torch.int32: "i32", torch.bool: "i1",
         torch.uint8: "u8"}  # fmt: skip


@contextmanager
def launches(monkeypatch):
    """The launches of the block, each once, as JSON. Nothing is computed: what kernels would write
    is left as it is."""
    from triton.runtime.interpreter import InterpretedFunction

    found = set()

    def run(kernel, *arguments, grid, warmup, **named):
        found.add(json.dumps(_launch(kernel, arguments, named), sort_keys=True))

    with monkeypatch.context() as patched:
        patched.setattr(InterpretedFunction, "run", run)
        yield found


def _launch(kernel, arguments, named):
    given = dict(zip(kernel.arg_names, arguments, strict=False)) | named
    annotations = kernel.fn.__annotations__
    signature, constants = {}, {}
    for name in kernel.arg_names:
        value = given.pop(name)
        kind = "constexpr" if "constexpr" in str(annotations.get(name, "")) else _kind(value)
        signature[name] = kind
        if kind == "constexpr":
            constants[name] = value
    return {
        "module": kernel.fn.__module__,
        "name": kernel.fn.__name__,
        "signature": signature,
        "constants": constants,
        "options": given,  # warps and stages
    }


def _kind(value):
    """As Triton tells types. It treats None and 1 as constants."""
    if isinstance(value, tuple):
        return [_kind(one) for one in value]
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    if value is None or value == 1:
        return "constexpr"
    return "fp32" if isinstance(value, float) else "i32"


def jitted(package):
    """Module and name of all kernels of a package that are launched; those that begin with `_` are
    called by others."""
    from triton.runtime.interpreter import InterpretedFunction

    return {
        (value.fn.__module__, name)
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith(f"{package}.")
        for name, value in vars(module).items()
        if isinstance(value, InterpretedFunction) and not name.startswith("_")
    }
