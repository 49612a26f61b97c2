"""How outputs change when elements are left out."""

from equipool.leave_one_out.measure import influence
from equipool.leave_one_out.result import Influence

__all__ = ["Influence", "influence"]
