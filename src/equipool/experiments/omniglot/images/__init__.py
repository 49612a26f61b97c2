"""Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people."""

from equipool.experiments.omniglot.images.characters import Characters, Omniglot
from equipool.experiments.omniglot.images.load import load_omniglot
from equipool.experiments.omniglot.images.resize import shrink

__all__ = ["Characters", "Omniglot", "load_omniglot", "shrink"]
