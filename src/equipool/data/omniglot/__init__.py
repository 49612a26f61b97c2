"""Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people."""

from equipool.data.omniglot.characters import Characters, Omniglot
from equipool.data.omniglot.load import load_omniglot
from equipool.data.omniglot.resize import shrink

__all__ = ["Characters", "Omniglot", "load_omniglot", "shrink"]
