import base64
import re
import struct

import pytest
import torch

from equipool.demo.__main__ import main
from equipool.demo.models import Sizes
from equipool.demo.pictures import bin_means
from equipool.demo.show import show
from equipool.demo.study import PURPOSES, Plan, run_study, seed_for
from equipool.demo.task import sample_sets
from equipool.demo.train import Recipe

PLAN = Plan(
    steps=3,
    sizes=Sizes(width=8, channels=3, potential_outputs=2, inner_steps=2, head_width=8),
    recipe=Recipe(batch_size=4),
    num_test_sets=20,
    num_path_sets=10,
    inner_steps_shown=6,
    grid=7,
)
PICTURES = ("learning-curves.png", "energy.png", "landscape.png")


def plan(**changes):
    return Plan(**{**PLAN.__dict__, **changes})


def ignore(name, done, history):
    pass


def errors(plan):
    return [result.error for result in run_study(plan, ignore).results]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The page and the pictures of a short run."""
    page = show(PLAN, tmp_path_factory.mktemp("demo") / "new" / "folder")
    return page, page.read_text(encoding="utf-8")


def test_the_command_writes_pictures_and_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("equipool.demo.study.Plan", lambda **given: plan(**given))
    assert main(["--steps", "2", "--seed", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert str(tmp_path / "index.html") in printed
    for expected in ("equilibrium", "sum pooling", "test MSE"):
        assert expected in printed
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted((*PICTURES, "index.html"))


def test_a_seed_gives_the_same_errors_and_another_seed_others():
    first, again, other = errors(PLAN), errors(PLAN), errors(plan(seed=1))
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_every_purpose_of_every_seed_draws_its_own_numbers():
    drawn = {seed_for(seed, purpose) for seed in range(5) for purpose in PURPOSES}
    assert len(drawn) == 5 * len(PURPOSES)


def test_test_sets_are_not_those_trained_on(monkeypatch):
    states = []

    def watched(num_sets, generator):
        states.append((num_sets, generator.initial_seed()))
        return sample_sets(num_sets, generator)

    monkeypatch.setattr("equipool.demo.study.sample_sets", watched)
    monkeypatch.setattr("equipool.demo.train.sample_sets", watched)
    run_study(PLAN, ignore)
    trained = {seed for num_sets, seed in states if num_sets == PLAN.recipe.batch_size}
    tested = {seed for num_sets, seed in states if num_sets == PLAN.num_test_sets}
    assert len(trained) == len(tested) == 1  # both networks see the same sets
    assert trained != tested


def test_steps_are_the_same_for_both_networks():
    results = run_study(PLAN, ignore).results
    assert [result.steps for result in results] == [3, 3]


def test_with_seconds_sum_pooling_gets_as_many_steps_and_then_as_many_seconds():
    results = run_study(plan(steps=None, seconds=0.2), ignore).results
    equilibrium, same_steps, same_seconds = results
    assert same_steps.steps == equilibrium.steps
    assert equilibrium.seconds >= 0.2
    assert same_seconds.seconds >= 0.2


def test_progress_is_reported_for_each_network():
    heard = []
    run_study(PLAN, lambda name, done, history: heard.append((name, round(done, 2))))
    thirds = (0.33, 0.67, 1.0)
    assert heard == [(name, done) for name in ("equilibrium", "sum pooling") for done in thirds]


def test_the_page_stands_alone(shown):
    _, html = shown
    sources = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert len(sources) == 3
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"https?://|url\(|@import", html)


def test_the_page_holds_the_pictures_that_were_written(shown):
    page, html = shown
    embedded = [base64.b64decode(data) for data in re.findall(r"base64,([^\"]*)", html)]
    assert embedded == [(page.parent / name).read_bytes() for name in PICTURES]
    for picture in embedded:
        assert picture[:8] == b"\x89PNG\r\n\x1a\n"
        assert min(struct.unpack(">II", picture[16:24])) > 400


def test_the_page_tells_what_was_measured(shown):
    _, html = shown
    text = " ".join(re.sub(r"<[^>]*>", " ", html).split())
    for result in run_study(PLAN, ignore).results:
        assert f"{result.parameters:,} 3" in text
        assert f"{result.error:.2e}" in text
    for expected in ("Both were trained for 3 steps", "seed 0", f"torch {torch.__version__}"):
        assert expected in text


def test_the_page_says_how_seconds_were_shared(tmp_path):
    html = show(plan(steps=None, seconds=0.1), tmp_path).read_text(encoding="utf-8")
    assert "Both were given 0.1 seconds of training" in " ".join(html.split())


@pytest.mark.parametrize(("count", "bins"), [(1, 1), (3, 3), (40, 5), (103, 5)])
def test_bins_cover_the_whole_series(count, bins):
    values = torch.rand(count).tolist()
    ends, means = bin_means(values, 5)
    assert len(ends) == bins
    assert ends[-1] == count
    sizes = torch.diff(ends, prepend=torch.zeros(1))
    assert (means * sizes).sum().item() == pytest.approx(sum(values))
