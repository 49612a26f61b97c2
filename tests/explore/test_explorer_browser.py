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


def test_everything_is_reached_by_tab(page):
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("() => document.activeElement.getAttribute('aria-label') ?? "
                               "document.activeElement.id ?? ''"))  # fmt: skip
    assert any(label.startswith("Element 6 at 1.75") for label in seen)
    assert any(label.startswith("Start of the search") for label in seen)
    assert {"Play the steps", "steps", "Use dark colours"} <= seen


def test_the_answer_is_announced(page):
    expected = "Mean of 6 elements: y is \u22120.23 after 20 steps; the true mean is \u22120.23."
    page.wait_for_function(
        "(text) => document.getElementById('announcement').textContent === text", arg=expected
    )


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


def test_solver_step_size_and_momentum(page):
    page.locator("summary").click()
    page.locator("#solver").select_option("gradient-descent")
    assert state(page)["solver"]["kind"] == "gradient-descent"
    assert page.locator("#momentum").count() == 0
    page.locator("#solver").select_option("bounded-nesterov")
    page.locator("#learning-rate").fill("-1")
    page.locator("#momentum").fill("0.3")
    solver = state(page)["solver"]
    assert solver["learning_rate"] == pytest.approx(0.1)
    assert (solver["momentum"], solver["max_step"]) == (0.3, 0.5)


def test_doubling_changes_a_sum_and_no_mean(page):
    before = state(page)["y"]
    page.get_by_role("button", name="Double every element").click()
    doubled = state(page)
    assert len(doubled["elements"]) == 12
    assert doubled["y"] == pytest.approx(before)
    choose(page, "Numbers", "sum")
    assert state(page)["y"] == pytest.approx([12 * before[0]], abs=0.02)


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


def test_contributions_are_listed_and_select_their_element(page):
    page.wait_for_function(LISTED)
    rows = page.locator(".contributions tbody tr")
    assert rows.count() == 6
    assert rows.first.text_content().startswith("6 at 1.75")
    assert rows.first.locator(".number").all_text_contents() == ["+0.40", "+0.40"]
    rows.first.click()
    assert page.evaluate("() => document.activeElement.getAttribute('aria-label')").startswith(
        "Element 6"
    )


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

    def test_axes_and_colours_at_phone_width(self, browser, model):
        page = open_page(browser, model[2].as_uri(), width=360, height=740, dark=True)
        before = page.locator(".bag-element").nth(0).get_attribute("transform")
        page.locator("#choose-across").select_option(label="x1")
        assert page.locator(".bag-element").nth(0).get_attribute("transform") != before
        page.locator("#choose-colour").select_option(label="x0")
        fills = page.eval_on_selector_all(
            ".bag-element .dot", "(all) => new Set(all.map((e) => e.style.fill)).size"
        )
        assert fills > 2
        assert not page.evaluate(SCROLLS)
        page.wait_for_selector("#contributions:not(.stale)")
        assert page.problems == []
        page.context.close()

    def test_strongest_for_and_against_come_first_and_equal_elements_are_counted(
        self, browser, model, tmp_path
    ):
        from equipool.explore.model import model_page

        estimator, bag, _ = model
        repeated = np.concatenate([bag, bag[:1], bag[:1]])
        file = tmp_path / "page.html"
        file.write_text(model_page(estimator, repeated), encoding="utf-8")
        page = open_page(browser, file.as_uri())
        page.wait_for_selector("#contributions:not(.stale)")
        while page.locator("text=weaker ones").count():
            page.locator("text=weaker ones").first.click()
        before = "(rows) => rows.map((row) => row.querySelector('.number').textContent)"
        for kind, sign in (("for", 1), ("against", -1)):
            shown = page.eval_on_selector_all(f"[data-list={kind}] tr.element", before)
            values = [float(text.replace("\u2212", "-")) for text in shown]
            assert values == sorted(values, key=abs, reverse=True)
            assert all(sign * value > 0 for value in values)
        rows = page.locator("tr.element")
        assert rows.count() == len(bag)
        assert rows.filter(has_text="element 1 and 2 equal").count() == 1
        assert page.locator(".bag-element .count", has_text="\u00d73").count() == 1
        assert page.problems == []
        page.context.close()
