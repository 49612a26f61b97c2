"""Equilibrium Aggregation: pooling sets by minimising a learned energy.

>>> layer = equipool.EquilibriumAggregation(in_channels=3, out_channels=8)
>>> layer(torch.randn(5, 3), torch.tensor([0, 1, 0, 0, 1])).shape
torch.Size([2, 8])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipool.public import *  # noqa: F403

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that `equipool --help` does not wait for torch,
    which takes seconds to import."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = import_module("equipool.public")
    found = {exported: getattr(public, exported) for exported in public.__all__}
    globals().update(found, __all__=public.__all__)
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
