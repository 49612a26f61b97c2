"""The Python in a page of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run_page(page: str) -> dict[str, object]:
    """Run a page's Python blocks, one after the other in one namespace, and return that."""
    path = ROOT / page
    blocks = re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks, f"{page} has no Python blocks"
    namespace: dict[str, object] = {"__name__": page}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{page}, block {number}", "exec"), namespace)
    return namespace
