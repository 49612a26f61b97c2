"""The explorer in a browser without a network."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip


def start_browser(playwright):
    """The system's chromium: playwright's own would be a download."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)


def open_page(browser, address, *, width=1280, height=800, dark=False):
    """A page in a window of its own, whose errors and warnings are collected in `page.problems`."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.problems = []
    page.on("console", lambda message: page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("requestfailed", lambda request: page.problems.append(request.url))
    page.goto(address)
    page.wait_for_selector(".layer [tabindex]")
    return page


def needs_browser():
    pytest.importorskip("playwright", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
