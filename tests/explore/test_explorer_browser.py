"""The explorer in a real browser: what a reader does, and what the page then shows."""

import shutil

import numpy as np
import pytest

from equipool.explore.page import PAGE

pytestmark = pytest.mark.processes

STATE = """() => {
    const { state, scene } = equipool.explorer;
    return { elements: state.elements.map((x) => [...x]), y: [...scene.y],
             answer: [...scene.answer] };
}"""
SCROLLS = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]


@pytest.fixture(scope="module")
def browser():
    """The system's chromium: playwright's own would be a download."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


def open_page(browser, address, **window):
    """A page in a window of its own, whose errors and warnings are collected in `page.problems`."""
    page = browser.new_context(**window).new_page()
    page.set_default_timeout(10_000)
    page.problems = []
    page.on("console", lambda message: page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("requestfailed", lambda request: page.problems.append(request.url))
    page.goto(address)
    page.wait_for_selector(".layer [tabindex]")
    return page


@pytest.fixture
def page(browser):
    """The explorer of sets; a test fails if the page reports anything."""
    found = open_page(browser, PAGE.as_uri(), viewport={"width": 1280, "height": 800})
    yield found
    assert found.problems == []
    found.context.close()


def state(page):
    """What the page has computed, after the frame that a change asked for."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return page.evaluate(STATE)


def choose(page, space, pooling):
    page.get_by_role("button", name=space, exact=True).click()
    page.click(f"[data-pooling={pooling}]")
    page.wait_for_function(
        "(key) => equipool.explorer.scene.state.pooling.key === key", arg=pooling
    )


def test_dragging_a_number_moves_the_answer(page):
    before = state(page)
    box = page.locator(".point >> nth=5").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 100, y)
    page.mouse.move(x - 200, y)
    page.mouse.up()
    after = state(page)
    moved = np.array(after["elements"]) - before["elements"]
    assert np.flatnonzero(moved[:, 0]).tolist() == [5]
    assert moved[5, 0] < -0.5
    assert after["answer"][0] - before["answer"][0] == pytest.approx(moved[5, 0] / 6)
    assert after["y"][0] == pytest.approx(after["answer"][0], abs=1e-3)


def test_elements_are_added_moved_and_deleted(page):
    stage = page.locator(".layer").bounding_box()
    page.mouse.click(stage["x"] + stage["width"] * 0.75, stage["y"] + 60)
    assert state(page)["elements"][6][0] == pytest.approx(1.1, abs=0.02)
    page.locator(".point").nth(0).dblclick()
    assert len(state(page)["elements"]) == page.locator(".point").count() == 6
    page.locator(".point").nth(1).focus()
    page.keyboard.press("ArrowRight")
    assert state(page)["elements"][1][0] == pytest.approx(-0.55 + 0.05)
    for _ in range(10):
        page.keyboard.press("Delete")
    assert len(state(page)["elements"]) == 1


@pytest.mark.parametrize("space", ["Numbers", "Plane"])
def test_every_pooling_ends_near_its_answer(page, space):
    page.get_by_role("button", name=space, exact=True).click()
    state(page)  # the choices follow with the next frame
    keys = page.eval_on_selector_all("[data-pooling]", "(all) => all.map((e) => e.dataset.pooling)")
    assert len(keys) >= 6
    for key in keys:
        choose(page, space, key)
        found = state(page)
        # Between the middle elements of an even set every point is a median.
        tolerance = {"quantile": 0.35, "median": 0.3}.get(key, 0.15)
        assert found["y"] == pytest.approx(found["answer"], abs=tolerance), key


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_it_fits_on_a_phone_and_a_laptop(browser, width, scheme):
    window = {"viewport": {"width": width, "height": 760}, "color_scheme": scheme}
    page = open_page(browser, PAGE.as_uri(), **window)
    choose(page, "Plane", "geometric-median")
    assert not page.evaluate(SCROLLS)
    assert page.problems == []
    page.context.close()


def test_switching_an_element_of_a_model_off_predicts_again(browser, tmp_path):
    pytest.importorskip("sklearn")
    from equipool.estimators import SetClassifier, make_bags
    from equipool.explore.model import model_page

    bags, labels = make_bags(30, num_features=3, random_state=0)
    settings = {"max_iter": 10, "channels": 4, "hidden_size": 8, "random_state": 0}
    estimator = SetClassifier(**settings, device="cpu").fit(bags, labels)
    file, bag = tmp_path / "page.html", bags[1]
    file.write_text(model_page(estimator, bag, title="Bag 1"), encoding="utf-8")
    page = open_page(browser, file.as_uri())
    shown = "() => equipool.explorer.prediction.values"
    assert page.evaluate(shown) == pytest.approx(estimator.predict_proba([bag])[0], abs=1e-4)
    page.locator(".bag-element").nth(0).click()
    rest = estimator.predict_proba([bag[1:]])[0]
    assert page.evaluate(shown) == pytest.approx(rest, abs=1e-4)
    assert page.locator("[data-output='1']").text_content() == f"{100 * rest[1]:.1f} %"
    assert page.problems == []
    page.context.close()
