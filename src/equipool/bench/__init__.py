"""`equipool bench`: the cost of the layer and of its alternatives."""
