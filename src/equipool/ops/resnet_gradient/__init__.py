"""The gradient by y of the paper's potential, summed over sets: factored, and differentiable.

`docs/derivation.md` derives what is computed here.
"""

from equipool.ops.resnet_gradient.binding import bind_gradient
from equipool.ops.resnet_gradient.folding import Folded, Maps, fold
from equipool.ops.resnet_gradient.spec import Spec

__all__ = ["Folded", "Maps", "Spec", "bind_gradient", "fold"]
