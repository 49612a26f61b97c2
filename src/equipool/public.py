"""What `equipool` exports. Importing it imports torch."""

from equipool import closed_form, cuda, diagnostics, distributed, large, live
from equipool.aggregation import EquilibriumAggregation
from equipool.descent import Descent, Search
from equipool.differentiation import Differentiation, Implicit, Truncated, Unrolled
from equipool.energy import Energy
from equipool.leave_one_out import Influence, influence
from equipool.objective import Bounds, Objective
from equipool.posterior import Laplace, laplace
from equipool.potentials import (
    AutogradSum,
    ConvexPotential,
    Potential,
    ResNetPotential,
    SummedPotential,
)
from equipool.recipes import converging
from equipool.regularizers import BoundRegularizer, Regularizer, SquaredNorm
from equipool.sets import Sets
from equipool.solution import ConvergenceWarning, Solution, Solutions, record
from equipool.solvers import (
    GradientDescent,
    Nesterov,
    Newton,
    SafeguardedNesterov,
    Solver,
    SolverState,
    StronglyConvexNesterov,
)
from equipool.starts import LearnedStart, NormalStart, Start
from equipool.steps import Budget, FixedSteps, RandomSteps, Steps, ToTolerance

__all__ = [
    "AutogradSum", "BoundRegularizer", "Bounds", "Budget", "ConvergenceWarning", "ConvexPotential",
    "Descent", "Differentiation", "Energy", "EquilibriumAggregation", "FixedSteps",
    "GradientDescent", "Implicit", "Influence", "Laplace", "LearnedStart", "Nesterov", "Newton",
    "NormalStart", "Objective", "Potential", "RandomSteps", "Regularizer", "ResNetPotential",
    "SafeguardedNesterov", "Search", "Sets", "Solution", "Solutions", "Solver", "SolverState",
    "SquaredNorm", "Start", "Steps", "StronglyConvexNesterov", "SummedPotential", "ToTolerance",
    "Truncated", "Unrolled", "closed_form", "converging", "cuda", "diagnostics", "distributed",
    "influence", "laplace", "large", "live", "record",
]  # fmt: skip
