"""The explorer in a real browser: what a reader does, and what the page then shows."""

import numpy as np
import pytest
from browser_pages import needs_browser, open_page, start_browser

from equipool.explore.page import PAGE

pytestmark = pytest.mark.processes

STATE = "() => { const { state, scene } = equipool.explorer; return {"
STATE += "elements: state.elements.map((x) => [...x]), start: [...state.start], y: [...scene.y],"
STATE += (
    "answer: [...scene.answer], steps: scene.descent.path.length - 1, pooling: state.pooling.key,"
)
STATE += "dimension: state.dimension, solver: state.solver } }"
LISTED = (
    "() => !document.querySelector('.contributions td:nth-child(3)').textContent.includes('\u2013')"
)
SCROLLS = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser():
    needs_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = start_browser(playwright)
        yield found
        found.close()


@pytest.fixture
def page(browser):
    """The explorer of sets; a test fails if the page reports anything."""
    found = open_page(browser, PAGE.as_uri())
    yield found
    assert found.problems == []
    found.context.close()


def state(page):
    """What the page has computed, after the frame that a change asked for."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return page.evaluate(STATE)


def centre(page, selector):
    box = page.locator(selector).first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page, selector, across, down):
    x, y = centre(page, selector)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + across / 2, y + down / 2)
    page.mouse.move(x + across, y + down)
    page.mouse.up()


def choose(page, space, pooling):
    page.get_by_role("button", name=space, exact=True).click()
    page.click(f"[data-pooling={pooling}]")
    page.wait_for_function(
        "(key) => equipool.explorer.scene.state.pooling.key === key", arg=pooling
    )


def test_dragging_a_number_moves_the_answer(page):
    before = state(page)
    drag(page, ".point >> nth=5", -200, 0)
    after = state(page)
    moved = np.array(after["elements"]) - before["elements"]
    assert np.flatnonzero(moved[:, 0]).tolist() == [5]
    assert moved[5, 0] < -0.5
    assert after["answer"][0] - before["answer"][0] == pytest.approx(moved[5, 0] / 6)
    assert after["y"][0] == pytest.approx(after["answer"][0], abs=1e-3)


def test_dragging_in_the_plane_and_the_start(page):
    choose(page, "Plane", "mean")
    before = state(page)
    drag(page, ".point >> nth=0", 60, -40)
    drag(page, ".start", 50, 50)
    after = state(page)
    moved = np.array(after["elements"][0]) - before["elements"][0]
    assert (moved > 0.1).all()
    assert np.array(after["start"])[0] > before["start"][0]
    assert after["y"] == pytest.approx(after["answer"], abs=1e-3)


def test_adding_and_deleting(page):
    stage = page.locator(".layer").bounding_box()
    page.mouse.click(stage["x"] + stage["width"] * 0.75, stage["y"] + 60)
    assert len(state(page)["elements"]) == 7
    assert state(page)["elements"][6][0] == pytest.approx(1.1, abs=0.02)
    page.get_by_role("button", name="Add an element").click()
    assert len(state(page)["elements"]) == 8
    page.get_by_role("button", name="Remove").click()
    page.locator(".point").nth(0).dblclick()
    after = state(page)
    assert len(after["elements"]) == page.locator(".point").count() == 6
    assert after["elements"][0][0] == pytest.approx(-0.9)
    for _ in range(10):
        page.keyboard.press("Delete")
    assert len(state(page)["elements"]) == 1


def test_keys_move_and_delete_elements(page):
    page.locator(".point").nth(2).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowLeft")
    assert state(page)["elements"][2][0] == pytest.approx(-0.55 + 0.05 - 0.25)
    assert page.locator(".point").nth(2).get_attribute("aria-valuenow") == "-0.75"
    page.keyboard.press("Delete")
    assert len(state(page)["elements"]) == 5
    choose(page, "Plane", "mean")
    page.locator(".point").nth(0).focus()
    page.keyboard.press("ArrowUp")
    assert state(page)["elements"][0] == pytest.approx([-1.25, -0.5])


def test_the_slider_shows_the_path_step_by_step(page):
    page.locator("#steps").focus()
    page.keyboard.press("Home")
    begin = state(page)
    assert begin["steps"] == 0
    assert begin["y"] == begin["start"]
    page.keyboard.press("ArrowRight")
    assert state(page)["steps"] == 1
    page.get_by_role("button", name="Play the steps").click()
    page.wait_for_function("() => equipool.explorer.scene.descent.path.length === 2")


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
        rivals = page.locator(".answer dt").count() - 2
        assert rivals == (2 if key.startswith("learned") else 0)


@pytest.mark.parametrize(("width", "height", "dark"), [(1280, 800, False), (360, 740, True)])
def test_phone_and_laptop_light_and_dark(browser, width, height, dark):
    page = open_page(browser, PAGE.as_uri(), width=width, height=height, dark=dark)
    for space, pooling in (("Numbers", "mean"), ("Plane", "geometric-median")):
        choose(page, space, pooling)
        assert not page.evaluate(SCROLLS)
        page.wait_for_function(LISTED)
    background = "() => getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(background)
    page.locator("#theme").click()
    assert page.evaluate(background) != before
    assert page.problems == []
    page.context.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pytest.importorskip("sklearn")
    from equipool.estimators import SetClassifier, make_bags
    from equipool.explore.model import model_page

    bags, labels = make_bags(30, num_features=3, random_state=0)
    settings = {"max_iter": 10, "channels": 4, "hidden_size": 8, "random_state": 0}
    estimator = SetClassifier(**settings, device="cpu").fit(bags, labels)
    file = tmp_path_factory.mktemp("model") / "page.html"
    file.write_text(model_page(estimator, bags[1], title="Bag 1"), encoding="utf-8")
    return estimator, bags[1], file


class TestOwnModel:
    def test_switching_an_element_off_predicts_again(self, browser, model):
        estimator, bag, file = model
        page = open_page(browser, file.as_uri())
        assert page.title() == "Bag 1"
        shown = "() => equipool.explorer.prediction.values"
        whole = estimator.predict_proba([bag])[0]
        assert page.evaluate(shown) == pytest.approx(whole, abs=1e-4)
        page.locator(".bag-element").nth(0).click()
        rest = estimator.predict_proba([bag[1:]])[0]
        assert page.evaluate(shown) == pytest.approx(rest, abs=1e-4)
        assert page.locator("[data-output='1']").text_content() == f"{100 * rest[1]:.1f} %"
        page.keyboard.press("Enter")  # the element has the focus
        assert page.evaluate(shown) == pytest.approx(whole, abs=1e-4)
        page.wait_for_selector("#contributions:not(.stale)")
        page.get_by_role("button", name="Switch off the strongest").click()
        assert page.locator(".bag-element[aria-checked=false]").count() == 1
        page.get_by_role("button", name="Switch all on").click()
        assert page.locator(".bag-element[aria-checked=false]").count() == 0
        page.wait_for_selector("#contributions:not(.stale)")
        assert page.problems == []
        page.context.close()
