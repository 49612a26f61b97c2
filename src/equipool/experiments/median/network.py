"""Networks that learn the median of a set of numbers."""

from __future__ import annotations

from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.experiments.residual import ResidualNetwork


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


def equilibrium_network(layer: EquilibriumAggregation, head_width: int = 128) -> MedianNetwork:
    """The network of Equilibrium Aggregation, which embeds and pools at once: the layer takes the
    numbers as they are.

    Args:
        layer: maps 1 channel to the pooled vector.
        head_width: of the network behind.

    Example:
        >>> from equipool.experiments.inner_loop import InnerLoop
        >>> layer = InnerLoop().equilibrium_layer(1, 8, (256, 256, 1), steps=5)
        >>> equilibrium_network(layer)(torch.rand(5, 100)).shape
        torch.Size([5])
    """
    return MedianNetwork(nn.Identity(), layer, layer.out_channels, head_width)
