"""How outputs change when elements are left out."""

from equipool.leave_one_out.measure import Influence, influence

__all__ = ["Influence", "influence"]
