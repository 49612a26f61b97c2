"""Live sets: elements are added, removed and replaced, and only changed sets are solved again."""

from equipool.streaming.stream import Stream, StreamCheck

__all__ = ["Stream", "StreamCheck"]
