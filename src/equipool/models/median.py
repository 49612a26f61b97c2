"""Networks that learn the median of a set of numbers."""

from __future__ import annotations

from torch import Tensor, nn

from equipool.models.equilibrium import equilibrium_layer
from equipool.models.residual import ResidualNetwork


class MedianNetwork(nn.Module):
    """One number for each set of numbers: each is embedded, the set is pooled into `channels`
    values, and a network of sizes `[channels, head_width, 1]` reads them.

    Where the paper writes `[D, 128, 1]` for this network, `D` is taken to be its input. As one more
    layer of its own, with four or eight rectified units, it dies in some runs of every method.

    Args:
        embedding: `[B, N, 1] -> [B, N, C]`.
        aggregation: pools padded sets, `[B, N, C] -> [B, channels]`.
        channels: size of the pooled vector.
        head_width: as above.

    Shapes:
        `[B, N] -> [B]`.
    """

    def __init__(
        self, embedding: nn.Module, aggregation: nn.Module, channels: int, head_width: int = 128
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.aggregation = aggregation
        self.head = nn.Sequential(
            nn.Linear(channels, head_width), nn.ReLU(), nn.Linear(head_width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.aggregation(self.embedding(x.unsqueeze(-1)))
        return self.head(pooled).squeeze(-1)


def pooling_network(
    aggregation: nn.Module, channels: int, *, width: int = 256, head_width: int = 128
) -> MedianNetwork:
    """The network of a rival: a residual network with layers of size `[width, width, channels]`
    embeds each number, then they are pooled.

    Args:
        aggregation: maps `channels` to `channels`.
        channels: size of the embedding and of the pooled vector.
        width: of the embedding network.
        head_width: of the network behind.

    Example:
        >>> from equipool.baselines import SumPooling
        >>> network = pooling_network(SumPooling(8, 8), 8)
        >>> network(torch.rand(5, 100)).shape
        torch.Size([5])
    """
    embedding = ResidualNetwork((1, width, width, channels))
    return MedianNetwork(embedding, aggregation, channels, head_width)


def equilibrium_network(
    channels: int,
    *,
    width: int = 256,
    head_width: int = 128,
    potential_output: int = 1,
    num_steps: int = 5,
    learning_rate: float = 0.125,
    momentum: float = 0.9,
    max_step: float | None = None,
    curvature_safe: bool = False,
    start_value: float | None = None,
    regularizer_weight: float = 0.1,
) -> MedianNetwork:
    """The network of Equilibrium Aggregation, which embeds and pools at once: the layer takes the
    numbers as they are. The defaults are the paper's: unrestrained, the solver is `Nesterov`.

    Args:
        channels: size of the pooled vector.
        width: of the potential, whose layers have the sizes `[width, width, potential_output]`.
        head_width: of the network behind.
        potential_output: as above.
        num_steps: of the inner optimiser.
        learning_rate: that it starts with.
        momentum: that it starts with.
        max_step: the longest step of `RestrainedNesterov`; None for any length.
        curvature_safe: whether its steps are shortened where the energy is steep.
        start_value: of every component of a learned start; None for the zero vector.
        regularizer_weight: that the regulariser starts with.

    Example:
        >>> equilibrium_network(8)(torch.rand(5, 100)).shape
        torch.Size([5])
    """
    layer = equilibrium_layer(
        1,
        channels,
        (width, width, potential_output),
        num_steps=num_steps,
        learning_rate=learning_rate,
        momentum=momentum,
        max_step=max_step,
        curvature_safe=curvature_safe,
        start_value=start_value,
        regularizer_weight=regularizer_weight,
    )
    return MedianNetwork(nn.Identity(), layer, channels, head_width)
