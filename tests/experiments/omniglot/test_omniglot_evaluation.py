import numpy as np
import pytest
import torch
from PIL import Image

from equipool.experiments.omniglot.data import CharacterImages, CharacterSets, Pool
from equipool.experiments.omniglot.evaluation import (
    Counted,
    draw_set,
    metrics_of,
    write_results,
)  # fmt: skip

# True numbers, and what is said; of 3 there is no set.
TRUE, SAID = [1, 1, 1, 2, 2, 4], [1, 2, 2, 2, 4, 4]
PROBABILITY = [0.9, 0.5, 0.7, 0.6, 0.8, 0.9]


def counted(true=TRUE, said=SAID, probability=PROBABILITY):
    """Sets of three images each, with the answers said at these probabilities."""
    images = torch.arange(3 * len(true)).view(-1, 3) % 24
    shares = (1 - torch.tensor(probability).unsqueeze(1).repeat(1, 4)) / 3
    shares[range(len(said)), torch.tensor(said) - 1] = torch.tensor(probability)
    return Counted(CharacterSets(images, torch.tensor(true)), shares.log().double())


DATA = CharacterImages(
    (torch.rand(24, 5, 5) * 255).to(torch.uint8), {"train": Pool(0, 12, 2)}, ("?",) * 12
)


def test_metrics():
    expected = [[1, 2, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert counted().confusion().tolist() == expected
    found = metrics_of({"validation": counted(), "test": counted()})
    assert found["validation_accuracy"] == found["test_accuracy"] == pytest.approx(0.5)
    shares = {1: 1 / 3, 2: 1 / 2, 4: 1.0}
    for number, share in shares.items():
        assert found[f"test_accuracy_{number}"] == pytest.approx(share)
    assert "test_accuracy_3" not in found
    assert "validation_accuracy_1" not in found
    chosen = torch.tensor([0.9, 0.5 / 3, 0.1, 0.6, 0.2 / 3, 0.9])
    assert found["test_cross_entropy"] == pytest.approx(-chosen.log().mean().item(), rel=1e-5)


def test_confusion_and_the_surest_mistakes_are_written(tmp_path):
    """A picture for each number with a mistake; none where there is none."""
    write_results({"validation": counted([1], [1], [0.5]), "test": counted()}, DATA, tmp_path)
    written = ["1-taken-for-2", "2-taken-for-4"]
    assert sorted(file.stem for file in tmp_path.glob("*.png")) == [
        f"test-{one}" for one in written
    ]
    assert (tmp_path / "confusion-test.csv").read_text().splitlines() == [
        "true,1,2,3,4", "1,1,2,0,0", "2,0,1,0,1", "3,0,0,0,0", "4,0,0,0,1",
    ]  # fmt: skip
    images = counted().sets.images[2]
    shown = np.asarray(Image.open(tmp_path / "test-1-taken-for-2.png"))
    np.testing.assert_array_equal(shown, draw_set(DATA.pixels[images], images // 2).numpy())


def test_a_set_is_drawn_a_row_for_each_character():
    images = torch.zeros(3, 4, 4, dtype=torch.uint8)
    images[0, 1, 2] = 255
    drawn = draw_set(images, torch.tensor([9, 5, 9]))
    assert drawn.shape == (10, 10)
    assert drawn[5 + 1, 2] == 0  # the ink of the first 9, below the 5
    assert (drawn[:4, :4] == 255).all()
    assert (drawn[:5, 5:] == 255).all()  # no second 5
