"""benchmarks/bags.py: trials, their record, and what is said of them."""

import json

import bags
import numpy as np
import pytest
from bags_summary import common_folds, holm, nemenyi, over_repeats, rank, read_lines
from bags_trials import ASSUMPTIONS, METHODS, Assumption, Trial, all_trials, scored, train
from typer.testing import CliRunner

import tiny_bags as tiny
from equipool.experiments.bags.data import load_bags, load_folds


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    tiny.write_table(folder)
    monkeypatch.setenv("EQUIPOOL_DATA", str(folder))
    return folder


def test_a_trial_tests_on_the_fold_and_on_nothing_else(data):
    found = Trial("musk1", 0, 3, "svm").run(str(data), "cpu")
    bags_, trained = load_bags("musk1", data), load_folds("musk1", data)[0, 3].numpy()
    labels, every = bags_.labels.numpy().astype(int), bags_.arrays()
    some = [bag for bag, chosen in zip(every, trained, strict=True) if chosen]
    others = [bag for bag, chosen in zip(every, trained, strict=True) if not chosen]
    wanted = scored(train("svm", 3, some, labels[trained])(others), labels[~trained])
    assert {name: found[name] for name in wanted._fields} == wanted._asdict()
    assert (found["train_bags"], found["test_bags"], found["seed"]) == (54, 6, 3)


def test_a_network_is_trained_for_three_lengths_in_the_first_repeat(data, monkeypatch):
    lengths = []

    def stub(method, seed, bags_, labels, device, steps=None):
        lengths.append(steps)
        return lambda others: np.array([bag[:, 0].max() - 4 for bag in others])

    monkeypatch.setattr("bags_trials.train", stub)
    found = Trial("musk1", 0, 0, "mean").run(str(data), "cpu")
    assert lengths == [None, 40, 80]
    assert found["peeked"] == 1.0
    Trial("musk1", 1, 0, "mean").run(str(data), "cpu")
    assert lengths[3:] == [None]


def test_scores():
    labels = np.array([0, 0, 1, 1])
    assert scored(np.array([-1.0, 2.0, 3.0, 4.0]), labels) == (0.75, 1.0, 1.0)
    assert scored(np.array([-1.0, -1.0, -2.0, -3.0]), labels) == (0.5, 0.0, 0.5)
    assert scored(np.ones(2), np.ones(2)).auc is None


def test_every_method_meets_every_fold_once(data):
    trials = all_trials(str(data), ("musk1",))
    assert len(trials) == len(set(trials)) == 50 * len(METHODS)
    assert {trial.repeat for trial in trials[: 10 * len(METHODS)]} == {0}


def command(*words):
    done = CliRunner().invoke(bags.app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_resumes(data, tmp_path):
    out = tmp_path / "folds.jsonl"
    part = ["--dataset", "musk1", "--repeat", 0, "--method", "svm", "--out", out, "--device", "cpu"]
    assert "(2)" in command(*part, "--fold", 0, "--fold", 1)
    before = out.read_text().splitlines()
    assert "(3)" in command(*part, "--fold", 0, "--fold", 1, "--fold", 2)
    after = out.read_text().splitlines()
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2  # a header and a row
    command(*part, "--show")
    assert out.read_text().splitlines() == after
    headers, rows = read_lines(out)
    assert [row["fold"] for row in rows] == [0, 1, 2]
    assert {"commit", "versions", "hardware", "networks"} <= set(headers[0])


def test_damaged_lines_are_named(tmp_path):
    (tmp_path / "x.jsonl").write_text("{}\n{\n")
    with pytest.raises(ValueError, match=r"x\.jsonl has a line that is not JSON"):
        read_lines(tmp_path / "x.jsonl")


def rows_of(**accuracies):
    """One fold on each data set."""
    return [
        {"dataset": f"d{at}", "repeat": 0, "fold": 0, "method": method, "accuracy": value}
        for method, values in accuracies.items()
        for at, value in enumerate(values)
    ]


def test_ranks():
    rows = rows_of(equilibrium=(0.9, 0.8, 0.7), mean=(0.8, 0.8, 0.9), max=(0.1, 0.2, 0.3))
    found = rank(rows, ("equilibrium", "mean", "max"))
    assert found.ranks == pytest.approx({"equilibrium": 4.5 / 3, "mean": 4.5 / 3, "max": 3.0})
    assert found.num_datasets == 3
    # Demsar (2006) has q = 2.343 for three methods
    assert found.critical_difference == pytest.approx(2.343 * (12 / 18) ** 0.5, abs=1e-3)
    assert nemenyi(10, 10) == pytest.approx(3.164 * (110 / 60) ** 0.5, abs=2e-3)
    assert found.p_values["max"] == pytest.approx(0.5)  # 0.25 twice
    missing = rows_of(equilibrium=(0.9, 0.8), mean=(0.8,))
    assert len(common_folds(missing, ("equilibrium", "mean"))) == 2
    assert rank(missing, ("equilibrium", "max")) is None


def test_holm_never_lowers_a_later_value():
    assert holm({"a": 0.5, "b": 0.4, "c": 0.01}) == pytest.approx({"c": 0.03, "b": 0.8, "a": 0.8})


def test_repeats_are_averaged_first():
    rows = [
        {"repeat": repeat, "accuracy": value}
        for repeat, value in ((0, 0.0), (0, 0.0), (0, 0.0), (1, 1.0), (1, None))
    ]
    assert over_repeats(rows, "accuracy") == (0.5, pytest.approx(0.5**0.5))
    assert over_repeats(rows[:1], "accuracy") == (0.0, None)
    assert over_repeats([], "accuracy") is None


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_the_shortcut_of_a_unit_test_turns_round(name):
    pytest.importorskip("torchmil")
    one = Assumption(name, "svm", 0)
    (bags_, labels), (turned, other) = one.bags(40, True, 0), one.bags(40, False, 0)
    assert sorted(set(labels)) == sorted(set(other)) == [0, 1]
    if name == "frequency":  # only such test bags are long
        assert max(map(len, bags_)) < 20 < min(map(len, turned[20:]))  # negative
    else:
        poisoned, turned = (
            np.array([(b < -8).all(1).any() for b in some]) for some in (bags_, turned)
        )
        assert np.array_equal(poisoned, labels == 0)
        assert np.array_equal(turned, other == 1)
    again, _ = one.bags(40, True, 0)
    assert all(np.array_equal(a, b) for a, b in zip(bags_, again, strict=True))
    found = one.run(40, "cpu")
    assert json.loads(json.dumps(found)) == found


def test_the_record_does_not_say_where_files_are():
    words = ["--repeat", "0", "--data-dir", "DIR", "--out", "FILE", "--jobs", "2"]
    assert bags._command(words) == "--repeat 0 --jobs 2"
    assert bags._command(words[:2]) == "--repeat 0"
