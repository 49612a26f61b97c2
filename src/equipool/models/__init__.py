"""Networks of the experiments."""

from equipool.models.median import MedianNetwork, equilibrium_network, pooling_network
from equipool.models.residual import ResidualNetwork

__all__ = ["MedianNetwork", "ResidualNetwork", "equilibrium_network", "pooling_network"]
