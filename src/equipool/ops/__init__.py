"""Tensors in, tensors out: the arithmetic under the layer. Nothing here knows of modules."""
