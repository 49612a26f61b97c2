"""The forms in which Omniglot comes, and what is wrong with others."""

import numpy as np
import pytest
import torch

import tiny_omniglot as tiny
from equipool import extras
from equipool.experiments.omniglot import data
from equipool.experiments.omniglot.data import (
    fetch,
    load_omniglot,
    read_archive,
    read_pictures,
)

PARTS = ("background", "evaluation")


def check(characters, part):
    assert list(characters) == tiny.names(part)
    images = torch.stack(list(characters.values()))
    assert images.dtype == torch.uint8
    assert torch.equal(images, torch.from_numpy(tiny.drawings(part)))


def test_archive_and_zips_give_the_same_in_any_order(tmp_path):
    strange = {"__MACOSX/images_background/Aa/character01/._0001_01.png": b"?", "README.txt": b"?"}
    tiny.write_zip(tmp_path, "background", strange | tiny.pictures("background"))
    tiny.write_zip(tmp_path, "evaluation")
    for part, characters in zip(PARTS, load_omniglot(tmp_path), strict=True):
        check(characters, part)
    order = np.random.default_rng(0).permutation(len(tiny.arrays()["split"]))
    shuffled = {name: values[order] for name, values in tiny.arrays().items()}
    tiny.write_archive(tmp_path, **shuffled)
    (tmp_path / "images_background.zip").write_bytes(b"no zip file")  # the archive is taken first
    for part, characters in zip(PARTS, load_omniglot(tmp_path), strict=True):
        check(characters, part)


@pytest.mark.parametrize(
    "change", [None, tiny.picture(np.zeros((20, 20))), b"no picture"], ids=["missing", "size", "?"]
)
def test_pictures_that_are_not_as_expected_are_refused(tmp_path, change):
    content = tiny.pictures("background")
    name = next(name for name in content if "Bb_(Old)/character02" in name)
    content |= {name: change}
    if change is None:
        del content[name]
    with pytest.raises(ValueError, match=r"images_background.zip is not Omniglot"):
        read_pictures(tiny.write_zip(tmp_path, "background", content))


@pytest.mark.parametrize("damage", [lambda c: c[: len(c) // 2], lambda _: b"404: Not Found"])
def test_damaged_files_are_named(tmp_path, damage):
    for file, read in ((tiny.write_zip(tmp_path, "evaluation"), read_pictures),
                       (tiny.write_archive(tmp_path), read_archive)):  # fmt: skip
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(ValueError, match=f"{file} is not Omniglot, or is damaged"):
            read(file)


SPLIT, ALPHABET = tiny.arrays()["split"], tiny.arrays()["alphabet"]
IMAGES = tiny.arrays()["images"]
WRONG = {
    "inverse": ({"images": 255 * IMAGES}, "images is uint8"),
    "other split": ({"split": np.where(SPLIT == "evaluation", "test", SPLIT)}, "test"),
    "twice": ({"alphabet": np.full(42, "Aa")}, "one name and one split for each"),
    "pickled": ({"alphabet": ALPHABET.astype(object)}, "allow_pickle=False"),
}


@pytest.mark.parametrize(("changed", "message"), WRONG.values(), ids=WRONG)
def test_archives_that_are_not_as_expected_are_refused(tmp_path, changed, message):
    file = tiny.write_archive(tmp_path, **changed)
    with pytest.raises(ValueError, match=rf"omniglot.npz is not Omniglot.*{message}"):
        read_archive(file)


def test_what_is_missing_is_named_with_its_address(tmp_path, monkeypatch):
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "pooch" else found(name))
    advice = r"brendenlake/omniglot/\S+/images_background.zip and put it .*needs pooch"
    with pytest.raises(FileNotFoundError, match=advice):
        load_omniglot(tmp_path)


def test_a_missing_file_is_downloaded_once_and_its_checksum_is_given(tmp_path, monkeypatch):
    def retrieve(url, checksum, name, folder):
        assert (url, checksum) == (f"{data.PUBLISHED}/d.zip", "md5:1")
        folder.mkdir()
        (folder / name).write_bytes(b"some data")
        return folder / name

    file = tmp_path / "new" / "d.zip"
    monkeypatch.setattr("pooch.retrieve", retrieve)
    assert fetch(file, "md5:1") == file
    monkeypatch.setattr("pooch.retrieve", None)
    assert fetch(file, "md5:1").read_bytes() == b"some data"
