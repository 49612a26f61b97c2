"""The documentation as `make docs` builds it: it works from disk, without a network."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag

import pytest

from python_blocks import ROOT

pytest.importorskip("mkdocs")
pytest.importorskip("material")

pytestmark = pytest.mark.processes

FORMULA_SIZES = """[...document.querySelectorAll("mjx-container > svg")].map(
    svg => [svg.getBoundingClientRect().width, svg.getBoundingClientRect().height].map(Math.round)
)"""
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Page(HTMLParser):
    """Links, anchors and loaded files of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.loaded = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "link" and attributes.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(attributes["href"])
        if tag in ("script", "img", "iframe") and "src" in attributes:
            self.loaded.append(attributes["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    found = {file: Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    found.pop(site / "404.html")  # a server shows it at any address, so its links are absolute
    assert len(found) > 20
    return found


def test_every_link_leads_to_a_file_and_its_anchor(site, pages):
    broken = []
    for file, page in pages.items():
        for link in page.links + page.loaded:
            if re.match(r"[a-z]+:", link):
                continue
            path, anchor = urldefrag(link)
            target = (file.parent / unquote(path)).resolve() if path else file
            lost = not target.is_file() or (
                anchor and target in pages and unquote(anchor) not in pages[target].anchors
            )
            if lost:
                broken.append(f"{file.relative_to(site)}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_the_network(site, pages):
    assert [link for page in pages.values() for link in page.loaded if "//" in link] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_every_formula_shows_on_a_phone(site):
    """In a browser without a network. A long one scrolls inside the page; none shrinks to
    nothing."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    files = [file for file in site.rglob("*.html") if "arithmatex" in file.read_text()]
    assert len(files) > 10
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 400, "height": 800})
        for file in files:
            page.goto(file.as_uri())
            page.wait_for_selector("mjx-container > svg", state="attached")
            page.wait_for_function("MathJax.startup.promise.then(() => true)")
            assert min(min(size) for size in page.evaluate(FORMULA_SIZES)) > 3, file.name
        browser.close()
