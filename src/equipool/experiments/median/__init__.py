"""The median of a set of numbers."""

from equipool.experiments.median.task import MedianTask

__all__ = ["MedianTask"]
