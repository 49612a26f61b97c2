"""A captured step owns the memory that it reads."""

import contextlib

import pytest
import torch

import equipool


def test_scratch_memory_is_cleared_between_warm_up_and_recording(monkeypatch):
    """torch keeps it by stream, and the stream of the warm-up may be that of the recording."""
    events = []

    @contextlib.contextmanager
    def graph(_, pool):
        events.append("begin")
        yield
        events.append("end")

    class Stream:
        def wait_stream(self, other): ...

    for name, fake in {
        "is_available": lambda: True,
        "synchronize": lambda: None,
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "CUDAGraph": object,
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    clear = "_cuda_clearCublasWorkspaces"
    monkeypatch.setattr(torch._C, clear, lambda: events.append("clear"), raising=False)
    equipool.cuda.capture_step(lambda: events.append("step"), warmup=2)
    assert events == ["step", "step", "clear", "begin", "step", "end", "clear"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_outlives_the_scratch_memory_of_its_warm_up(monkeypatch):
    """torch hands out 32 streams in turn, so that every 32nd warm-up is on the stream that graphs
    are recorded on. The products here are long sums, which need scratch memory."""
    shared = torch.cuda.Stream()
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", shared)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: shared)
    a, b = torch.ones(16, 1 << 20, device="cuda"), torch.ones(1 << 20, 16, device="cuda")
    steps = [equipool.cuda.capture_step(lambda: a @ b) for _ in range(3)]
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    for step in steps:
        assert (step() == 1 << 20).all()
    torch.cuda.synchronize()
