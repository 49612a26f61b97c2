"""A one-minute demonstration: the median of 100 numbers, by equilibrium and by sum pooling.

Run it with `python -m equipool.demo`.
"""
