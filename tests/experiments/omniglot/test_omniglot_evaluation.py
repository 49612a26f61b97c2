import pytest
import torch

from equipool.experiments.omniglot.data import CharacterSets
from equipool.experiments.omniglot.evaluation import Counted, metrics_of, write_results

# True numbers, and what is said; of 3 there is no set.
TRUE, SAID = [1, 1, 1, 2, 2, 4], [1, 2, 2, 2, 4, 4]
PROBABILITY = [0.9, 0.5, 0.7, 0.6, 0.8, 0.9]


def counted(true=TRUE, said=SAID, probability=PROBABILITY):
    """Sets of three images each, with the answers said at these probabilities."""
    images = torch.arange(3 * len(true)).view(-1, 3) % 24
    shares = (1 - torch.tensor(probability).unsqueeze(1).repeat(1, 4)) / 3
    shares[range(len(said)), torch.tensor(said) - 1] = torch.tensor(probability)
    return Counted(CharacterSets(images, torch.tensor(true)), shares.log().double())


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


def test_confusion_is_written(tmp_path):
    write_results({"test": counted()}, tmp_path / "results")
    assert (tmp_path / "results" / "confusion-test.csv").read_text().splitlines() == [
        "true,1,2,3,4", "1,1,2,0,0", "2,0,1,0,1", "3,0,0,0,0", "4,0,0,0,1",
    ]  # fmt: skip
