"""Settings of the whole suite."""

import torch
from hypothesis import settings

# Tests run side by side, a process to a core: more threads only get in each other's way.
torch.set_num_threads(1)

settings.register_profile("suite", deadline=None, max_examples=10, derandomize=True)
settings.load_profile("suite")
