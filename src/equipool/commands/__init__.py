"""The commands `equipool train`, `evaluate`, `sweep` and `report`."""
