"""The paper's experiments, one folder each, with its data, network and task."""
