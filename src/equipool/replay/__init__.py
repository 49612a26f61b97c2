"""Solves recorded as CUDA graphs inside the layer, so that the plain call launches one or two.

A solve of fifteen steps is hundreds of small kernels, and launching them from Python takes longer
than running them. The layer therefore records the solve, and the backward pass through it, for a
*capacity*: a number of elements and of sets that batches are padded to. Batches of similar size
share a capacity.
"""

from equipool.replay.replays import Program, Replays

__all__ = ["Program", "Replays"]
