"""Graph networks for molecules."""

from equipool.experiments.molecules.network.batch import MoleculeBatch
from equipool.experiments.molecules.network.convolutions import (
    CONVOLUTIONS,
    Convolution,
    GCNConvolution,
    GINConvolution,
)
from equipool.experiments.molecules.network.encoders import CategoryEncoder, MultiHot
from equipool.experiments.molecules.network.messages import (
    EquilibriumOfMessages,
    MessageAggregation,
    SumOfMessages,
)
from equipool.experiments.molecules.network.network import MoleculeNetwork, Prediction
from equipool.experiments.molecules.network.norm import MaskedBatchNorm, RealRows
from equipool.experiments.molecules.network.readouts import Readout, make_readout
from equipool.experiments.molecules.network.units import Units
from equipool.experiments.molecules.network.virtual_node import VirtualNode

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
