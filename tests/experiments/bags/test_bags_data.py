"""Reading bags, their folds, and batches of fixed shape."""

import numpy as np
import pytest
import torch

import tiny_bags as tiny
from equipool.experiments.bags.data import (
    CLASSICS,
    DATASETS,
    PARTICLES,
    gather_bags,
    load_bags,
    load_folds,
    split_bags,
    stratified_folds,
)
from equipool.experiments.data import MissingDataError


@pytest.fixture
def folder(tmp_path):
    tiny.write_table(tmp_path)
    return tmp_path


def test_a_table_comes_back_as_bags(folder):
    bags, wanted = load_bags("musk1", folder), tiny.columns()
    assert bags.features == ("f0", "f1", "f2")
    assert len(bags) == tiny.BAGS
    for number, array in enumerate(bags.arrays()):
        rows = wanted["bag"] == number
        assert np.array_equal(array, np.stack([wanted[f"f{c}"][rows] for c in range(3)], 1))
        assert bags.labels[number] == wanted["label"][rows][0]
    chosen = torch.tensor([7, 3])
    for found, number in zip(bags.arrays(chosen), chosen, strict=True):
        assert np.array_equal(found, bags.arrays()[number])


def test_rows_may_come_in_any_order(folder, tmp_path_factory):
    """Elements of a bag keep their order in the table."""
    other, content = tmp_path_factory.mktemp("other"), tiny.columns()
    order = np.argsort(content["bag"] % 7, kind="stable")
    tiny.write_table(other, **{name: values[order] for name, values in content.items()})
    assert load_bags("musk1", other).fingerprint() == load_bags("musk1", folder).fingerprint()


def test_jets_have_logarithms_and_kinds_of_particles(tmp_path):
    content = tiny.columns()
    number = len(content["bag"])
    codes = np.resize(np.array(PARTICLES), number)
    pt = np.linspace(0.5, 2, number)
    tiny.write_table(tmp_path, "jets", pt=pt, pdgid=codes, f0=None, f1=None, f2=None)
    bags = load_bags("jets", tmp_path)
    assert bags.features == ("log pt", *(f"pdgid={code}" for code in PARTICLES))
    assert torch.equal(bags.x[:, 1:].sum(1), torch.ones(number))
    torch.testing.assert_close(bags.x[:, 0], torch.from_numpy(np.log(pt)).float())


def test_targets_are_no_features(tmp_path):
    content = tiny.columns()
    spend = content["label"] * 10.0
    tiny.write_table(tmp_path, "cdnow", label=None, buys_again=content["label"], future_spend=spend)
    assert load_bags("cdnow", tmp_path).features == ("f0", "f1", "f2")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": None}, "it has no column label, but bag, f0, f1, f2"),
        ({"bag": tiny.columns()["bag"] * 2}, "bag has gaps"),
        ({"label": tiny.columns()["bag"] * 0 + 3}, r"label has \[3\], expected 0 and 1"),
        ({"label": np.arange(len(tiny.columns()["bag"])) % 2}, "label varies within bag"),
        ({"f1": tiny.columns()["f1"] * np.nan}, "f1 has a value that is not finite"),
    ],
)
def test_tables_that_are_refused(tmp_path, changed, message):
    file = tiny.write_table(tmp_path, **changed)
    with pytest.raises(ValueError, match=f"{file.name} is not a table of musk1: {message}"):
        load_bags("musk1", tmp_path)


def test_missing_files_and_names(tmp_path):
    with pytest.raises(MissingDataError, match=r"fox\.parquet is missing: put the table there"):
        load_bags("fox", tmp_path)
    with pytest.raises(ValueError, match="dataset is 'wolf', expected one of"):
        load_bags("wolf", tmp_path)
    (tmp_path / "bags").mkdir()
    (tmp_path / "bags" / "tiger.parquet").write_text("no table")
    with pytest.raises(ValueError, match="is not a table of tiger"):
        load_bags("tiger", tmp_path)


def test_folds_share_out_every_class():
    labels = (torch.arange(50) < 20).float()
    folds = stratified_folds(labels, 5, "here")
    assert folds.shape == (5, 5, 50)
    tested = (~folds).long()
    assert torch.equal(tested.sum(1), torch.ones(5, 50, dtype=torch.int64))
    assert torch.equal((tested * labels).sum(2), torch.full((5, 5), 4.0))
    assert torch.equal(folds, stratified_folds(labels, 5, "here"))
    assert not torch.equal(folds, stratified_folds(labels, 5, "there"))
    assert not torch.equal(folds[0], folds[1])


def test_published_folds_are_taken(folder):
    published = np.ones((2, 3, tiny.BAGS), bool)
    published[..., :7] = False
    tiny.write_folds(folder, musk1=published)
    assert torch.equal(load_folds("musk1", folder), torch.from_numpy(published))
    assert split_bags("musk1", 1, 2, 0.2, folder).test.tolist() == list(range(7))
    tiny.write_folds(folder, musk1=published[..., 1:])
    with pytest.raises(ValueError, match=r"expected bool of \[repeats, folds, 60\]"):
        load_folds("musk1", folder)
    tiny.write_folds(folder, fox=published)
    assert load_folds("musk1", folder).shape == (5, 10, tiny.BAGS)


def test_the_parts_of_a_fold_are_all_bags_once(folder):
    labels = load_bags("musk1", folder).labels
    seen = set()
    for fold in range(10):
        parts = split_bags("musk1", 0, fold, 0.25, folder)
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(tiny.BAGS))
        assert len(parts.valid) == round(0.25 * (tiny.BAGS - len(parts.test)))
        assert abs(labels[parts.valid].mean() - 0.5) < 0.1
        seen |= set(parts.test.tolist())
    assert len(seen) == tiny.BAGS
    with pytest.raises(ValueError, match="fold is 10, expected 0 to 9 for musk1"):
        split_bags("musk1", 0, 10, 0.25, folder)
    with pytest.raises(ValueError, match="repeat is 5, expected 0 to 4 for musk1"):
        split_bags("musk1", 5, 0, 0.25, folder)


def test_gathered_bags_are_the_bags(folder):
    bags = load_bags("musk1", folder)
    positions = torch.tensor([4, -1, 9, 0, -1])
    found = gather_bags(bags, positions, 40)
    assert found.x.shape == (40, 3)
    for place, position in enumerate(positions.tolist()):
        own = found.x[found.mask & (found.bag == place)]
        wanted = torch.from_numpy(bags.arrays()[position]) if position >= 0 else bags.x[:0]
        assert torch.equal(own, wanted)
    assert not found.x[~found.mask].any()


def test_scaling_sees_the_chosen_bags_alone(folder):
    bags, chosen = load_bags("musk1", folder), torch.tensor([1, 5, 6, 40])
    found = bags.scaled_by(chosen)
    elements = torch.from_numpy(np.concatenate(found.arrays(chosen))).double()
    torch.testing.assert_close(elements.mean(0), torch.zeros(3).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(elements.std(0, correction=0), torch.ones(3).double())
    bags.x[:, 1] = 3.0
    assert not bags.scaled_by(chosen).x[:, 1].any()


@tiny.needs_real_data
def test_the_real_data():
    sizes = {"musk1": (92, 47), "musk2": (102, 39), "fox": (200, 100), "tiger": (200, 100),
             "elephant": (200, 100), "jets": (6000, 3000), "cdnow": (23570, 7058)}  # fmt: skip
    assert set(CLASSICS) < set(sizes) == set(DATASETS)
    for name, (number, positive) in sizes.items():
        bags, folds = load_bags(name, tiny.REAL), load_folds(name, tiny.REAL)
        assert (len(bags), int(bags.labels.sum())) == (number, positive)
        assert folds.shape == (5, 5 if name in ("jets", "cdnow") else 10, number)
        assert ((~folds).sum(1) == 1).all()
    assert [len(part) for part in split_bags("jets", 0, 0, 0.125, tiny.REAL)] == [4200, 600, 1200]
