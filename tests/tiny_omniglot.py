"""Omniglot's formats, with a few characters that a network learns to tell apart in a second."""

import zipfile
from io import BytesIO

import numpy as np
from PIL import Image

SIZE, DRAWINGS = 24, 4
ALPHABETS = {"background": ("Aa", "Bb_(Old)"), "evaluation": ("Cc",)}
CHARACTERS = {"background": 15, "evaluation": 12}  # of each alphabet


def names(part):
    """Of a part's characters, in order."""
    return [
        f"{alphabet}/character{number + 1:02}"
        for alphabet in ALPHABETS[part]
        for number in range(CHARACTERS[part])
    ]


def drawings(part):
    """`[characters, drawings, size, size]`, 1 for ink: a pattern of squares for each character,
    with a few pixels of its own in each drawing."""
    rng = np.random.default_rng(len(part))
    patterns = rng.random((len(names(part)), 1, 6, 6)) < 0.4
    large = patterns.repeat(SIZE // 6, -1).repeat(SIZE // 6, -2)
    spots = rng.random((len(large), DRAWINGS, SIZE, SIZE)) < 0.03
    return (large ^ spots).astype(np.uint8)


def arrays():
    """The content of `omniglot.npz`."""
    parts = ("background", "evaluation")
    every = [(part, *name.split("/")) for part in parts for name in names(part)]
    split, alphabet, character = (np.array(column) for column in zip(*every, strict=True))
    images = np.concatenate([drawings(part) for part in parts])
    return {"images": images, "alphabet": alphabet, "character": character, "split": split,
            "drawer": np.zeros(images.shape[:2], np.uint8)}  # fmt: skip


def write_archive(folder, **changed):
    """`omniglot.npz`, with some of its arrays replaced, or left out where that is None."""
    content = {name: value for name, value in (arrays() | changed).items() if value is not None}
    np.savez_compressed(folder / "omniglot.npz", **content)
    return folder / "omniglot.npz"


def picture(ink):
    """A drawing as its makers publish it: black on white, one bit a pixel."""
    content = BytesIO()
    Image.fromarray(np.where(ink, 0, 255).astype(np.uint8)).convert("1").save(content, "PNG")
    return content.getvalue()


def pictures(part):
    """Name and content of every picture of a part, the last drawings first."""
    images = drawings(part)
    return {
        f"images_{part}/{name}/{place:04}_{drawing + 1:02}.png": picture(images[place][drawing])
        for place, name in reversed(list(enumerate(names(part))))
        for drawing in reversed(range(DRAWINGS))
    }


def write_zip(folder, part, content=None):
    """A part as a zip file."""
    file = folder / f"images_{part}.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"images_{part}/", "")
        for name, data in (pictures(part) if content is None else content).items():
            archive.writestr(name, data)
    return file
