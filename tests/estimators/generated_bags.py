"""Small bags with a label that depends on them."""

import numpy as np


def make_bags(count=60, seed=0, least=0, most=6, features=3):
    """Bags of normal vectors; the label says whether the largest first feature exceeds 0.8."""
    random = np.random.default_rng(seed)
    sizes = random.integers(least, most + 1, size=count)
    bags = [random.normal(size=(size, features)) for size in sizes]
    labels = np.array([bag[:, 0].max(initial=-1) > 0.8 for bag in bags]).astype(int)
    labels[:2] = 0, 1  # both occur
    return bags, labels
