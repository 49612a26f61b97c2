"""Brings the generated tables and the pictures of the documentation up to date: `make figures`."""

from __future__ import annotations

from pathlib import Path

import bags_page
import closed_forms
import equilibrium
import functions_page
import guides
import idea
import influence_page
import median
import molecules
import omniglot
import performance
import readme
from tables import fill

DOCS = Path(__file__).parents[1]
SCRIPTS = (median, omniglot, molecules, bags_page, equilibrium, influence_page, functions_page)
BLOCKS = {script.PAGE: script.blocks for script in (*SCRIPTS, readme)}
BLOCKS |= guides.BLOCKS | dict.fromkeys(performance.PAGES, performance.blocks)


def main() -> None:
    for name, blocks in BLOCKS.items():
        page = DOCS / name
        page.write_text(fill(page.read_text(encoding="utf-8"), blocks()), encoding="utf-8")
    for script in (*SCRIPTS, performance, idea, closed_forms):
        script.draw()


if __name__ == "__main__":
    main()
