"""Zip files that may be damaged."""

from __future__ import annotations

import zipfile
import zlib

# zipfile says in many ways that it cannot read a file.
UNREADABLE = (
    OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
