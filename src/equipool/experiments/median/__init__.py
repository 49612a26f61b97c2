"""The median of a set of numbers."""

from equipool.experiments.median.task import LayerTask, MedianTask

__all__ = ["LayerTask", "MedianTask"]
