"""Counting the characters in a set of handwritten images."""
