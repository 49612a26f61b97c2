"""`equipool bench`: what the layer costs, beside what one would use instead."""
