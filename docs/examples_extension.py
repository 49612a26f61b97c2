"""Shows a docstring's `Example:` as code, as it would an `Examples:` section."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

SECTION = re.compile(r"^( *)Example:$", re.MULTILINE)


class ExampleSections(Extension):
    """Renames the section before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = SECTION.sub(r"\1Examples:", obj.docstring.value)
