"""Compiles kernels for a GPU of the kind of an H200, which need not be there. A program of its own:
read with TRITON_INTERPRET, a kernel cannot be compiled."""

import importlib
import json
import sys


def main():
    """Compile the launches that `kernel_launches` found, a line each."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for line in sys.stdin:
        launch = json.loads(line)
        kernel = getattr(importlib.import_module(launch["module"]), launch["name"])
        signature = {
            name: tuple(kind) if isinstance(kind, list) else kind
            for name, kind in launch["signature"].items()
        }
        source = ASTSource(kernel, signature, constexprs=launch["constants"])
        compiled = triton.compile(source, GPUTarget("cuda", 90, 32), launch["options"])
        print(launch["module"], launch["name"], len(compiled.asm["cubin"]))


if __name__ == "__main__":
    main()
