"""A batch normalisation that has been trained a while, as far as one can tell."""

import torch

from equipool.experiments.molecules.network.norm import MaskedBatchNorm


def random_norm(channels):
    norm = MaskedBatchNorm(channels)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(channels) + 0.5)
        norm.bias.copy_(torch.randn(channels))
        norm.running_mean.copy_(torch.randn(channels))
        norm.running_var.copy_(torch.rand(channels) + 0.5)
    return norm
