"""The page: one HTML file with everything in it, whose data can be replaced."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("page.html")
"""The built page with the explorer's own networks. Its sources are in the repository's `explorer/`,
from which `make explorer` builds it."""

DATA = re.compile(r'(<script type="application/json" id="equipool-data">)(.*?)(</script>)', re.S)


def page_with(data: dict[str, Any]) -> str:
    """The page with other data, which its script reads when it is opened."""
    # Inside a script element only "</" could end it.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    return DATA.sub(lambda found: found[1] + text + found[3], PAGE.read_text(encoding="utf-8"))


def page_data(page: str) -> dict[str, Any]:
    """The data of a page.

    Example:
        >>> page_data(page_with({"kind": "sets", "tasks": []}))
        {'kind': 'sets', 'tasks': []}
    """
    found = DATA.search(page)
    assert found is not None
    data: dict[str, Any] = json.loads(found[2])
    return data
