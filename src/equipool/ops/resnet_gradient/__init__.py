"""The gradient by y of the paper's potential, summed over sets: factored, and differentiable.

`docs/derivation.md` derives what is computed here.
"""

from equipool.ops.resnet_gradient.folding import Folded, fold
from equipool.ops.resnet_gradient.op import Spec, summed_gradient

__all__ = ["Folded", "Spec", "fold", "summed_gradient"]
