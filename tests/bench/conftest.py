"""The scripts of benchmarks/ and docs/figures/ can be imported, as from their own folders."""

import sys

from python_blocks import ROOT

sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "docs" / "figures")]
