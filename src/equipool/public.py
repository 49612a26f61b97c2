"""What `equipool` exports. Importing it imports torch."""

from equipool import (
    cuda,
    diagnostics,
    distributed,
    functional,
    large,
    live,
    potentials,
    regularizers,
    solvers,
    starts,
)
from equipool.aggregation import EquilibriumAggregation
from equipool.differentiation import Implicit, Truncated, Unrolled
from equipool.energy import Energy
from equipool.leave_one_out import Influence, influence
from equipool.pooling import LocationPooling
from equipool.posterior import Laplace, laplace
from equipool.potentials import ConvexPotential, LocationPotential, ResNetPotential
from equipool.recipes import converging
from equipool.regularizers import SquaredNorm
from equipool.sets import Sets
from equipool.solution import ConvergenceWarning, Solution, Solutions, record
from equipool.solvers import (
    Exact,
    GradientDescent,
    Nesterov,
    Newton,
    SafeguardedNesterov,
    StronglyConvexNesterov,
)
from equipool.starts import LearnedStart, NormalStart
from equipool.steps import FixedSteps, RandomSteps, ToTolerance

__all__ = [
    "ConvergenceWarning", "ConvexPotential", "Energy", "EquilibriumAggregation", "Exact",
    "FixedSteps", "GradientDescent", "Implicit", "Influence", "Laplace", "LearnedStart",
    "LocationPooling", "LocationPotential", "Nesterov", "Newton",
    "NormalStart", "RandomSteps", "ResNetPotential", "SafeguardedNesterov", "Sets", "Solution",
    "Solutions", "SquaredNorm", "StronglyConvexNesterov", "ToTolerance", "Truncated", "Unrolled",
    "converging", "cuda", "diagnostics", "distributed", "functional", "influence", "laplace",
    "large", "live", "potentials", "record", "regularizers", "solvers", "starts",
]  # fmt: skip
