"""The layer for torchmil: poolings with the call of its own, and a model for its trainer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torchmil.models import MILModel

from equipool.aggregation import EquilibriumAggregation
from equipool.leave_one_out import influence
from equipool.pooling import LocationPooling
from equipool.recipes import converging
from equipool.solution import record


class _Pool(nn.Module):
    """torchmil's call, of a pooling with that of the layer."""

    def forward(
        self, X: Tensor, mask: Tensor | None = None, return_att: bool = False  # noqa: N803
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        """Pool each bag.

        Args:
            X: elements, `[batch_size, bag_size, in_dim]`.
            mask: which of them are real, `[batch_size, bag_size]`. Default: all.
            return_att: whether to return the influence as well.

        Returns:
            `[batch_size, out_dim]`, and with `return_att` the length of the change of this output
            without each element, `[batch_size, bag_size]`: 0 for padding, NaN where the search has
            no minimum without the element. No gradients pass through it.
        """
        z: Tensor = super().forward(X, mask=_as_bool(mask))
        if not return_att:
            return z
        layer: Any = getattr(self, "layer", self)
        return z, influence(layer, X.detach(), mask=_as_bool(mask)).score.to(z.dtype)


class EquilibriumPool(_Pool, EquilibriumAggregation):  # type: ignore[misc]  # another call
    """`equipool.EquilibriumAggregation` with the call of torchmil's poolings,
    `pool(X, mask, return_att)`.

    The attention of an element is its influence: how far the output would move if the element were
    left out. The output of a bag does not depend on padding or on the other bags, and an empty bag
    has an output of its own. `solve`, `energy` and the diagnostics of equipool take the pool as
    they take the layer.

    Args:
        in_dim: size of an element.
        out_dim: size of the output. Default: `in_dim`, as in torchmil.
        settings: those of the layer. Default: those of `equipool.converging`.

    Example:
        >>> pool = EquilibriumPool(3, 8).eval()
        >>> X, mask = torch.randn(2, 5, 3), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
        >>> pool(X, mask).shape
        torch.Size([2, 8])
    """

    def __init__(self, in_dim: int, out_dim: int | None = None, **settings: Any) -> None:
        arguments: dict[str, Any] = {**converging(), **settings}
        super().__init__(in_dim, in_dim if out_dim is None else out_dim, **arguments)


class LocationPool(_Pool, LocationPooling):  # type: ignore[misc]
    """`equipool.LocationPooling` with the call of torchmil's poolings, `pool(X, mask, return_att)`.
    The attention of an element is its influence on the locations.

    Args:
        in_dim: size of an element.
        out_dim: size of the output. Default: `in_dim`, as in torchmil.
        settings: those of `equipool.LocationPooling`.

    Example:
        >>> LocationPool(3, 8)(torch.randn(2, 5, 3)).shape
        torch.Size([2, 8])
    """

    def __init__(self, in_dim: int, out_dim: int | None = None, **settings: Any) -> None:
        super().__init__(in_dim, in_dim if out_dim is None else out_dim, **settings)


class EquilibriumMIL(MILModel):
    """A model for torchmil's trainer: a feature extractor, `EquilibriumPool` and a linear
    classifier, with the methods of torchmil's `ABMIL`.

    The attention of an element is its influence on the bag's logit: the logit minus the logit
    without the element. It is positive for elements that are evidence for label 1.

    Args:
        in_shape: shape of one element.
        out_dim: size of the pooled bag. Default: the number of features.
        feat_ext: feature extractor. Default: none.
        criterion: loss. Default: `BCEWithLogitsLoss()`.
        aux_weight: weight of the auxiliary loss, which trains the layer towards its minimum.

    Example:
        >>> model = EquilibriumMIL((3,))
        >>> Y_pred, losses = model.compute_loss(torch.tensor([0, 1]), torch.randn(2, 5, 3))
        >>> Y_pred.shape, list(losses)
        (torch.Size([2]), ['BCEWithLogitsLoss', 'aux_loss'])
    """

    def __init__(
        self, in_shape: tuple[int, ...], out_dim: int | None = None,
        feat_ext: nn.Module | None = None, criterion: nn.Module | None = None,
        aux_weight: float = 1e-4,
    ) -> None:  # fmt: skip
        super().__init__()
        self.feat_ext = nn.Identity() if feat_ext is None else feat_ext
        self.criterion = nn.BCEWithLogitsLoss() if criterion is None else criterion
        self.aux_weight = aux_weight
        with torch.no_grad():
            num_features = math.prod(self.feat_ext(torch.zeros(1, *in_shape)).shape[1:])
        self.pool = EquilibriumPool(num_features, out_dim)
        self.classifier = nn.Linear(self.pool.out_channels, 1)

    def forward(
        self,
        X: Tensor,  # noqa: N803
        mask: Tensor | None = None,
        return_att: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The logit of each bag, `[batch_size]`, and with `return_att` the influence of each
        element on it, `[batch_size, bag_size]`. The arguments are those of the pooling."""
        features = self.feat_ext(X)
        logits = self.classifier(self.pool(features, mask)).squeeze(-1)
        if not return_att:
            return logits
        found = influence(
            self.pool, features.detach(), mask=_as_bool(mask), function=self.classifier
        )
        return logits, found.score.to(logits.dtype)

    def compute_loss(
        self,
        Y: Tensor,  # noqa: N803
        X: Tensor,  # noqa: N803
        mask: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The logits, and the losses, which torchmil's trainer adds up."""
        with record(diagnostics=False) as solutions:
            logits = self.forward(X, mask)
        assert isinstance(logits, Tensor)
        losses = {type(self.criterion).__name__: self.criterion(logits.float(), Y.float())}
        if self.aux_weight:
            losses["aux_loss"] = self.aux_weight * solutions.aux_loss
        return logits, losses

    def predict(
        self,
        X: Tensor,  # noqa: N803
        mask: Tensor | None = None,
        return_inst_pred: bool = True,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The logit of each bag, and the influence of each element on it."""
        return self.forward(X, mask, return_att=return_inst_pred)


def _as_bool(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.bool()
