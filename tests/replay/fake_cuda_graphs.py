"""CUDA graphs emulated on a CPU: a graph records the operations that run while it is captured, and
its replay runs them again into the same memory. It shows the logic of recording, replaying,
versions and staleness, not what a GPU does."""

from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map


class Graph:
    def __init__(self):
        self.operations = []

    @torch.no_grad()
    def replay(self):
        for function, args, kwargs, outputs in self.operations:
            again = tree_flatten(function(*args, **kwargs))[0]
            for old, new in zip(outputs, again, strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Recorder(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        def detached(value):
            return value.detach() if isinstance(value, Tensor) else value

        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            kept = [detached(value) for value in tree_flatten(out)[0]]
            operation = (function, tree_map(detached, args), tree_map(detached, kwargs), kept)
            self.graph.operations.append(operation)
        return out


class Event:
    recorded = 0

    def record(self, stream=None):
        Event.recorded += 1


class Stream:
    def wait_event(self, event): ...

    def wait_stream(self, stream): ...


def install(monkeypatch):
    """Record and replay on the CPU until the test ends."""
    capturing, stream = [False], Stream()

    @contextmanager
    def capture(graph, pool=None, **_):
        capturing[0] = True
        try:
            with Recorder(graph):
                yield
        finally:
            capturing[0] = False

    for name, fake in {
        "graph_pool_handle": lambda: 0,
        "Event": Event,
        "Stream": Stream,
        "stream": lambda _: nullcontext(),
        "current_stream": lambda *_: stream,
        "CUDAGraph": Graph,
        "graph": capture,
        "is_available": lambda: capturing[0],
        "is_current_stream_capturing": lambda: capturing[0],
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr("equipool.aggregation.graphs_serve", lambda x: not capturing[0])
