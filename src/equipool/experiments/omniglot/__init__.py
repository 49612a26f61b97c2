"""Counting the characters in a set of handwritten images."""

from equipool.experiments.omniglot.task import OmniglotTask

__all__ = ["OmniglotTask"]
