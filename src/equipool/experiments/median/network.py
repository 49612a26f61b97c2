"""The network that learns the median of a set of numbers."""

from __future__ import annotations

from torch import Tensor, nn


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

    Example:
        >>> network = MedianNetwork(torch.nn.Identity(), equipool.EquilibriumAggregation(1, 8), 8)
        >>> network(torch.rand(5, 100)).shape
        torch.Size([5])
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
