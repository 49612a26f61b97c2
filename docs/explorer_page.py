"""Copies the explorer into the site, from the package that holds it."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGE = Path(__file__).parent.parent / "src" / "equipool" / "explore" / "page.html"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "explorer/index.html", abs_src_path=str(PAGE)))
    return files
