"""Settings of the whole suite."""

import sys

import torch
from hypothesis import settings

# Tests run side by side, a process to a core: more threads only get in each other's way.
torch.set_num_threads(1)

# `import ogb` would start threads that ask the network for its latest version, and may fail in any
# test that runs by then.
sys.modules["outdated"] = None

settings.register_profile("suite", deadline=None, max_examples=10, derandomize=True)
settings.load_profile("suite")
