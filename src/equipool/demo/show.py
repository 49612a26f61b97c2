"""The demonstration as its user sees it: bars, a table, pictures and a page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from equipool.demo.console import ProgressBars, results_table
from equipool.demo.page import write_page
from equipool.demo.pictures import draw_energy, draw_landscape, draw_learning_curves
from equipool.demo.study import Plan, run_study
from equipool.demo.words import about_curves


def show(plan: Plan, out: Path) -> Path:
    """Run the plan and write its pictures and its page to `out`; the file of the page."""
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    bars = ProgressBars(console)
    with bars.progress:
        study = run_study(plan, bars.report)
    console.print(results_table(study.results))
    console.print(about_curves(study.results))
    pictures = {
        "curves": out / "learning-curves.png",
        "energy": out / "energy.png",
        "landscape": out / "landscape.png",
    }
    draw_learning_curves(study.results, pictures["curves"])
    draw_energy(study.paths, study.kinds, study.error_by_step, pictures["energy"])
    draw_landscape(study.landscape, pictures["landscape"])
    page = out / "index.html"
    write_page(study, plan, pictures, page)
    console.print(f"The page with the pictures: {page.resolve()}", soft_wrap=True)
    return page
