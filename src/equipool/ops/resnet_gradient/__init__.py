"""The gradient in y of the paper's potential, summed over sets: factored, and differentiable.

`docs/derivation.md` derives what is computed here.
"""

from equipool.ops.resnet_gradient.folding import Maps, Spec
from equipool.ops.resnet_gradient.torch import make_gradient

__all__ = ["Maps", "Spec", "make_gradient"]
