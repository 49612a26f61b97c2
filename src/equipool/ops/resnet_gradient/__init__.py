"""The gradient in y of the paper's potential, summed over sets: factored, and differentiable.

`docs/derivation.md` derives what is computed here.
"""

from equipool.ops.resnet_gradient.folding import Maps, Spec
from equipool.ops.resnet_gradient.implementations import ResNetGradient, make_gradient

__all__ = ["Maps", "ResNetGradient", "Spec", "make_gradient"]
