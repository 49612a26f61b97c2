import pytest


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn; none is rendered, which would take long."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    return figures
