"""Networks that learn the median of a set of numbers."""

from __future__ import annotations

from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.experiments.residual import ResidualNetwork


class MedianNetwork(nn.Module):
    """Predict one number for each set of numbers: embed each number, pool the set into `channels`
    values, and read them with a network of sizes `[channels, head_width, 1]`.

    The paper writes `[D, 128, 1]` for the last network; here `D` is its input. As an additional
    layer of four or eight rectified units it would die in some runs of every method.

    Args:
        embedding: `[B, N, 1] -> [B, N, C]`.
        aggregation: pools padded sets, `[B, N, C] -> [B, channels]`.
        channels: size of the pooled vector.
        head_width: hidden width of the last network.

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
        return self.predict(self.aggregation(self.embedding(x.unsqueeze(-1))))

    def predict(self, y: Tensor) -> Tensor:
        """The prediction for a pooled vector, `[..., channels] -> [...]`."""
        return self.head(y).squeeze(-1)


def pooling_network(
    aggregation: nn.Module, channels: int, *, width: int = 256, head_width: int = 128
) -> MedianNetwork:
    """The network for the other pooling methods: a residual network with layers of size
    `[width, width, channels]` embeds each number before the pooling, which maps `channels` to
    `channels`.

    Example:
        >>> from equipool.baselines import SumPooling
        >>> network = pooling_network(SumPooling(8, 8), 8)
        >>> network(torch.rand(5, 100)).shape
        torch.Size([5])
    """
    embedding = ResidualNetwork((1, width, width, channels))
    return MedianNetwork(embedding, aggregation, channels, head_width)


def equilibrium_network(layer: EquilibriumAggregation, head_width: int = 128) -> MedianNetwork:
    """The network for Equilibrium Aggregation: the layer embeds and pools, so it takes the numbers
    directly, as one channel.

    Example:
        >>> network = equilibrium_network(EquilibriumAggregation(1, 8))
        >>> network(torch.rand(5, 100)).shape
        torch.Size([5])
    """
    return MedianNetwork(nn.Identity(), layer, layer.out_channels, head_width)
