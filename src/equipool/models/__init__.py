"""Networks of the experiments."""

from equipool.models.equilibrium import equilibrium_layer
from equipool.models.median import MedianNetwork, equilibrium_network, pooling_network
from equipool.models.omniglot import ConvolutionalBlock, ImageEncoder, OmniglotNetwork
from equipool.models.residual import ResidualNetwork

__all__ = [
    "ConvolutionalBlock",
    "ImageEncoder",
    "MedianNetwork",
    "OmniglotNetwork",
    "ResidualNetwork",
    "equilibrium_layer",
    "equilibrium_network",
    "pooling_network",
]
