"""Graph networks for molecules."""

from equipool.models.molecules.batch import MoleculeBatch
from equipool.models.molecules.convolutions import (
    CONVOLUTIONS,
    Convolution,
    GCNConvolution,
    GINConvolution,
)
from equipool.models.molecules.encoders import CategoryEncoder, MultiHot
from equipool.models.molecules.messages import (
    EquilibriumOfMessages,
    MessageAggregation,
    SumOfMessages,
)
from equipool.models.molecules.network import MoleculeNetwork, Prediction
from equipool.models.molecules.norm import MaskedBatchNorm, RealRows
from equipool.models.molecules.readouts import Readout, make_readout
from equipool.models.molecules.units import Units
from equipool.models.molecules.virtual_node import VirtualNode

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
