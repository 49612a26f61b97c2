"""How fast the explorer page is in headless Chromium; exits with 1 if a target is missed.

    python benchmarks/explorer.py --out benchmarks/records/cpu-explorer.json

Measures the first paint of the page from disk, and frames per second while one of 100 elements is
dragged with 10 steps of the solver: every frame moves the element, searches again and draws.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from playwright.sync_api import Browser, Page, sync_playwright

from equipool.bench.record import FORMAT, git_commit
from equipool.environment import hardware, now, versions
from equipool.explore.page import PAGE

PAINT_MS, FRAMES = 1000, 30  # targets
LOADS = 7
SECONDS = 3
SIZE = {"width": 1280, "height": 800}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
CASES = [
    ("Numbers", "mean"), ("Numbers", "learned-median"),
    ("Plane", "mean"), ("Plane", "learned-geometric-median"),
]  # fmt: skip

FIRST_PAINT = """() => new Promise((done) => {
    const found = () => performance.getEntriesByName("first-contentful-paint")[0];
    const wait = () => (found() ? done(found().startTime) : requestAnimationFrame(wait));
    wait();
})"""

# 100 elements on a spiral, the same in every run.
PREPARE = """(elements) => {
    const size = equipool.explorer.state.dimension;
    const at = (i, k) => 0.018 * i * (k === 0 ? Math.cos(2.4 * i) : Math.sin(2.4 * i));
    const x = Array.from({ length: elements }, (_, i) =>
        Float64Array.from({ length: size }, (_, k) => at(i, k)));
    equipool.explorer.change({ elements: x, numSteps: 10 });
}"""

# A move of the pointer in every frame; returns the milliseconds between frames, and the number of
# frames in which the page had computed a new answer.
DRAG = """([seconds, x, y]) => new Promise((done) => {
    const mark = document.elementFromPoint(x, y).closest(".point");
    const scenes = new Set();
    const frames = [];
    const step = (time) => {
        frames.push(time);
        scenes.add(equipool.explorer.scene);
        if (time - frames[0] > 1000 * seconds) {
            const times = frames.slice(1).map((end, i) => end - frames[i]);
            return done({ times, computed: scenes.size });
        }
        const angle = (time - frames[0]) / 400;
        const place = { clientX: x + 120 * Math.sin(angle), clientY: y + 60 * Math.cos(angle) };
        mark.dispatchEvent(new PointerEvent("pointermove", { ...place, pointerId: 1 }));
        requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
})"""

app = typer.Typer(add_completion=False)


def first_paints(browser: Browser) -> list[float]:
    """Milliseconds from the start of loading, each in a new window."""
    found = []
    for _ in range(LOADS):
        page = browser.new_page(viewport=SIZE)
        page.goto(PAGE.as_uri())
        found.append(round(float(page.evaluate(FIRST_PAINT)), 1))
        page.close()
    return found


def frames_while_dragging(page: Page, space: str, pooling: str, elements: int) -> dict[str, Any]:
    """Frames per second, and the longest of 95 % of the frames."""
    page.get_by_role("button", name=space, exact=True).click()
    page.click(f"[data-pooling={pooling}]")
    page.evaluate(PREPARE, elements)
    page.wait_for_timeout(3000)  # the picture of all elements, and their contributions
    box = page.locator(".point").nth(50).bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    found = page.evaluate(DRAG, [SECONDS, x, y])
    page.mouse.up()
    times = sorted(found["times"])
    # Every frame but the first few must show another answer, or nothing was dragged.
    assert found["computed"] >= 0.9 * len(times) - 2, found["computed"]
    return {
        "space": space,
        "pooling": pooling,
        "elements": elements,
        "steps": 10,
        "frames_per_second": round(1000 * len(times) / sum(times), 1),
        "median_ms": round(statistics.median(times), 1),
        "ms_of_95_percent": round(times[int(0.95 * len(times))], 1),
    }


def run_once(elements: int) -> dict[str, Any]:
    """One run, with the load of the machine after it."""
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        paints = first_paints(browser)
        page = browser.new_page(viewport=SIZE)
        page.goto(PAGE.as_uri())
        drags = [frames_while_dragging(page, *case, elements) for case in CASES]
        chromium = browser.version
        browser.close()
    return {
        "date": now(),
        "commit": git_commit(),
        "chromium": chromium,
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "first_paint_ms": {"median": statistics.median(paints), "all": paints},
        "dragging": drags,
    }


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="record to write, or to add a run to")],
    elements: Annotated[int, typer.Option(help="elements of the set")] = 100,
) -> None:
    """Measure the explorer page. A record keeps every run, because other programs slow a run."""
    record = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    run = run_once(elements)
    record |= {
        "format": FORMAT,
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
        "page_bytes": PAGE.stat().st_size,
    }
    record.setdefault("runs", []).append(run)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(run, indent=1))
    slowest = min(drag["frames_per_second"] for drag in run["dragging"])
    if run["first_paint_ms"]["median"] >= PAINT_MS or slowest < FRAMES:
        print(f"Missed: first paint under {PAINT_MS} ms and {FRAMES} frames per second")
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
