"""Settings of the whole suite.

`HYPOTHESIS_PROFILE=thorough` draws many more examples. `EQUIPOOL_TEST_SEED=n` shifts every seed
that a test sets with `torch.manual_seed`, so that other weights and batches are drawn: a test must
hold for any n.
"""

import os
import sys

import torch
from hypothesis import HealthCheck, settings

from seeds import shift_seeds

# Tests run side by side, a process to a core: more threads only get in each other's way.
torch.set_num_threads(1)

# `import ogb` would start threads that ask the network for its latest version, and may fail in any
# test that runs by then.
sys.modules["outdated"] = None

# Every run draws new examples; a failure prints how to repeat it.
settings.register_profile(
    "suite",
    deadline=None,
    max_examples=10,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("suite"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


if "EQUIPOOL_TEST_SEED" in os.environ:
    shift_seeds()
