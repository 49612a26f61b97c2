"""Graph networks for molecules."""

from equipool.experiments.molecules.network.batch import MoleculeBatch
from equipool.experiments.molecules.network.convolutions import (
    CONVOLUTIONS,
    Convolution,
    EquilibriumOfMessages,
    GCNConvolution,
    GINConvolution,
    MessageAggregation,
    SumOfMessages,
)
from equipool.experiments.molecules.network.encoders import CategoryEncoder, MultiHot, Units
from equipool.experiments.molecules.network.network import (
    MoleculeNetwork,
    Prediction,
    Readout,
    VirtualNode,
    make_readout,
)
from equipool.experiments.molecules.network.norm import MaskedBatchNorm, RealRows

__all__ = [
    "CONVOLUTIONS",
    "CategoryEncoder",
    "Convolution",
    "EquilibriumOfMessages",
    "GCNConvolution",
    "GINConvolution",
    "MaskedBatchNorm",
    "MessageAggregation",
    "MoleculeBatch",
    "MoleculeNetwork",
    "MultiHot",
    "Prediction",
    "Readout",
    "RealRows",
    "SumOfMessages",
    "Units",
    "VirtualNode",
    "make_readout",
]
