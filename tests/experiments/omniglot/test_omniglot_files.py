"""The forms in which Omniglot comes."""

import numpy as np
import pytest
import torch

import tiny_omniglot as tiny
from equipool import extras
from equipool.experiments import data
from equipool.experiments.data import MissingDataError
from equipool.experiments.omniglot.files import load_omniglot, read_archive, read_pictures

PARTS = ("background", "evaluation")


def write_parts(*writers):
    def write(folder):
        for part, one in zip(PARTS, writers, strict=True):
            one(folder, part)

    return write


FORMS = {
    "archive": tiny.write_archive,
    "zips": write_parts(tiny.write_zip, tiny.write_zip),
    "unpacked": write_parts(tiny.write_unpacked, tiny.write_unpacked),
    "mixed": write_parts(tiny.write_zip, tiny.write_unpacked),
}


def check(characters, part):
    assert list(characters) == tiny.names(part)
    images = torch.stack(list(characters.values()))
    assert images.dtype == torch.uint8
    assert torch.equal(images, torch.from_numpy(tiny.drawings(part)))


@pytest.mark.parametrize("write", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same(tmp_path, write):
    write(tmp_path)
    found = load_omniglot(tmp_path)
    for part in PARTS:
        check(getattr(found, part), part)


def test_the_order_in_an_archive_does_not_matter(tmp_path, monkeypatch):
    """And it is taken before pictures, from the folder in use."""
    order = np.random.default_rng(0).permutation(len(tiny.arrays()["split"]))
    shuffled = {name: values[order] for name, values in tiny.arrays().items()}
    tiny.write_archive(tmp_path, **shuffled)
    (tmp_path / "images_background.zip").write_bytes(b"no zip file")
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))
    for part, characters in zip(PARTS, load_omniglot(), strict=True):
        check(characters, part)


def test_what_else_is_in_a_zip_file_is_passed_over(tmp_path):
    strange = {
        "__MACOSX/images_background/Aa/character01/._0001_01.png": b"?",
        "images_background/Aa/character01/._0001_01.png": b"?",
        "images_background/.DS_Store": b"?",
        "README.txt": b"?",
    }
    file = tiny.write_zip(tmp_path, "background", strange | tiny.pictures("background"))
    assert list(read_pictures(file)) == tiny.names("background")


OTHER_SIZE = tiny.picture(np.zeros((20, 20)))
NUMBER = r"has the shape \(3, 24, 24\) and .* \(4, 24, 24\)"


@pytest.mark.parametrize(
    ("which", "change", "message"),
    [
        (1, None, NUMBER),
        (2, lambda content: OTHER_SIZE, r"/\S+ has the shape \(20, 20\) and"),
        (0, lambda content: content[:60], "/0016_04.png is damaged"),
        (0, lambda content: b"no picture", "/0016_04.png is damaged"),
    ],
)
def test_pictures_that_are_not_as_expected_are_named(tmp_path, which, change, message):
    content = tiny.pictures("background")
    name = [name for name in content if "Bb_(Old)/character02" in name][which]
    picture = content.pop(name)
    if change is not None:
        content[name] = change(picture)
    file = tiny.write_zip(tmp_path, "background", content)
    expected = rf"images_background.zip is not a part .*Bb_\(Old\)/character02\s*{message}"
    with pytest.raises(ValueError, match=expected):
        read_pictures(file)


def cut_in_half(content):
    return content[: len(content) // 2]


def overwritten(content):
    """In the middle, where the content is."""
    middle = len(content) // 2
    return content[: middle - 100] + bytes(200) + content[middle + 100 :]


@pytest.mark.parametrize(
    "damage", [cut_in_half, overwritten, lambda _: b"404: Not Found", lambda _: b""]
)
def test_damaged_files_are_named(tmp_path, damage):
    zipped, archive = tiny.write_zip(tmp_path, "evaluation"), tiny.write_archive(tmp_path)
    for file in (zipped, archive):
        file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"images_evaluation.zip is not a part of Omniglot: "):
        read_pictures(zipped)
    told = r"omniglot.npz is not an Omniglot archive: .*\. If the file is truncated, copy it"
    with pytest.raises(ValueError, match=told):
        load_omniglot(tmp_path)


def test_a_file_or_a_folder_without_pictures_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"it has no pictures Alphabet/character/drawing.png"):
        read_pictures(tmp_path)
    with pytest.raises(NotADirectoryError, match=r"omniglot.npz is a file, expected a directory"):
        load_omniglot(tiny.write_archive(tmp_path))


SPLIT, ALPHABET = tiny.arrays()["split"], tiny.arrays()["alphabet"]
IMAGES = tiny.arrays()["images"]
WRONG = {
    "no images": ({"images": None}, "it has no images, but"),
    "no split": ({"split": None}, "it has no split"),
    "inverse": ({"images": 255 * IMAGES}, "images has the value 255, expected 1 for ink"),
    "no drawings": ({"images": IMAGES[:, :0]}, r"uint8 of shape \(42, 0, 24, 24\), expected"),
    "no test characters": (
        {"split": np.full(len(SPLIT), "background")},
        "split has background, expected",
    ),
    "floats": ({"images": IMAGES / 2}, "images is float64 of shape"),
    "flat": ({"images": IMAGES[:, 0]}, r"images is uint8 of shape \(42, 24, 24\)"),
    "not square": ({"images": IMAGES[..., 1:]}, r"uint8 of shape \(42, 4, 24, 23\)"),
    "few names": ({"alphabet": ALPHABET[1:]}, r"alphabet is <U8 of shape \(41,\), expected 42"),
    "numbers": ({"character": np.arange(42)}, "character is int64 of shape"),
    "other split": (
        {"split": np.where(SPLIT == "evaluation", "test", SPLIT)},
        "split has background, test",
    ),
    "twice": ({"alphabet": np.full(42, "Aa")}, "it has a character twice"),
    "pickled": ({"alphabet": ALPHABET.astype(object)}, "allow_pickle=False"),
}


@pytest.mark.parametrize(("changed", "message"), WRONG.values(), ids=WRONG)
def test_archives_that_are_not_as_expected_are_refused(tmp_path, changed, message):
    file = tiny.write_archive(tmp_path, **changed)
    with pytest.raises(ValueError, match=rf"omniglot.npz is not an Omniglot archive: .*{message}"):
        read_archive(file)


def test_a_single_array_is_no_archive(tmp_path):
    np.save(tmp_path / "a.npy", IMAGES)
    with pytest.raises(ValueError, match=r"a.npy is not an Omniglot archive: it holds a single"):
        read_archive(tmp_path / "a.npy")


def test_the_parts_must_fit(tmp_path):
    tiny.write_zip(tmp_path, "background")
    pictures = tiny.pictures("evaluation")
    shared = {name.replace("/Cc/", "/Aa/"): content for name, content in pictures.items()}
    tiny.write_zip(tmp_path, "evaluation", shared)
    with pytest.raises(ValueError, match="Aa/character01 is in both parts"):
        load_omniglot(tmp_path)
    fewer = {name: content for name, content in pictures.items() if not name.endswith("_04.png")}
    tiny.write_zip(tmp_path, "evaluation", fewer)
    expected = r"Cc/character01 has the shape \(3, 24, 24\) and Aa/character01 \(4, 24, 24\)"
    with pytest.raises(ValueError, match=expected):
        load_omniglot(tmp_path)


def test_what_is_missing_is_said_with_its_address(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    with pytest.raises(MissingDataError, match=r"brendenlake/omniglot/\S+/images_background.zip"):
        load_omniglot(tmp_path)
    tiny.write_zip(tmp_path, "background")
    with pytest.raises(MissingDataError, match=r"put it at .*images_evaluation.zip"):
        load_omniglot(tmp_path)


def test_pictures_need_pillow(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'PIL. Run: pip install "equipool\[data\]"'):
        read_pictures(tmp_path)


@tiny.needs_real_data
def test_the_real_data():
    data = load_omniglot(tiny.REAL.parent)
    assert [len(part) for part in data] == [964, 659]
    assert all(own.shape == (20, 105, 105) for part in data for own in part.values())
    alphabets = [{name.split("/")[0] for name in part} for part in data]
    assert [len(names) for names in alphabets] == [30, 20]
    assert not alphabets[0] & alphabets[1]
    assert (
        0.05 < torch.stack(list(data.background.values())).float().mean() < 0.1
    )  # ink is the smaller part
