"""Parts of a page that are made from records."""

from __future__ import annotations

import re
from collections.abc import Callable

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_blocks(page: str, make: Callable[[str], str]) -> str:
    """The page with the text between `<!-- generated: NAME -->` and `<!-- end -->` made anew.

    Example:
        >>> print(fill_blocks("<!-- generated: sum -->\\nold\\n<!-- end -->", str.upper))
        <!-- generated: sum -->
        <BLANKLINE>
        SUM
        <BLANKLINE>
        <!-- end -->
    """
    return BLOCK.sub(lambda match: f"{match[1]}\n{make(match[2])}\n\n{match[3]}", page)
