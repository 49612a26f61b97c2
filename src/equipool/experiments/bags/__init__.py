"""Classifying bags of vectors."""

from equipool.experiments.bags.task import BagsTask

__all__ = ["BagsTask"]
