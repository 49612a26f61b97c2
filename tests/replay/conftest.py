"""On a GPU solves are recorded; elsewhere CUDA graphs are emulated."""

import fake_cuda_graphs
import pytest
from replay_cases import ON_GPU, make_layer, warm_up


@pytest.fixture(autouse=True)
def _emulation(monkeypatch):
    if not ON_GPU:
        fake_cuda_graphs.install(monkeypatch)


@pytest.fixture
def layer():
    layer = warm_up(make_layer())
    assert len(layer._replays) == 2
    return layer
