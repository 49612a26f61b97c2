"""The paper's second experiment: count the characters in a set of handwritten images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.baselines import aggregation_from_name
from equipool.experiments.common import Aggregation, InnerLoop, StepsSetting, data_folder
from equipool.experiments.omniglot.data import (
    TEST,
    TRAIN,
    VALIDATION,
    CharacterImages,
    CharacterSets,
    character_images,
    sample_sets,
)
from equipool.experiments.omniglot.network import ImageEncoder, OmniglotNetwork
from equipool.files import write_text
from equipool.settings import Count
from equipool.training import Batch, Loss, Shard, Task, generator_for

SETS_AT_ONCE = 500  # in an evaluation


@dataclass(frozen=True)
class OmniglotTask(InnerLoop, Task):
    """Count the different characters in a set of handwritten images, with the cross entropy as the
    loss. Defaults are the paper's values, unless noted.

    Trained on characters of Omniglot's background set and tested on those of its evaluation set,
    which has other alphabets; some characters of the background set are held out for validation.

    Args:
        aggregation: pooling method.
        embedding: size of an image's embedding and of the pooled vector.
        batch_size: sets per step.
        seed: random seed of the weights and the training sets.
        set_size: images per set.
        max_classes: largest number of characters in a set.
        image_size: side of the images in pixels, divisible by 2 to the number of encoder blocks.
        validation_characters: characters held out for validation, always the same ones (the paper
            gives no number).
        encoder: channels of the encoder's blocks.
        head_width: width of the network after the pooling.
        potential: sizes of the potential's layers.
        inner_steps: steps of the inner optimiser.
        evaluation_sets: sets to evaluate on for each of training, validation and test characters;
            always the same. The records use 4,000 or 8,000.
    """

    name: ClassVar[str] = "omniglot"
    monitor: ClassVar[str] = "validation_accuracy"
    lower_is_better: ClassVar[bool] = False
    reported: ClassVar[tuple[str, ...]] = ("test_accuracy", "train_accuracy")

    aggregation: Aggregation = "equilibrium"
    embedding: Count = 256
    batch_size: Count = 8
    seed: int = 0
    set_size: Count = 16
    max_classes: Count = 10
    image_size: Count = 32
    validation_characters: Count = 64
    encoder: tuple[int, ...] = (16, 32, 64)
    head_width: Count = 128
    potential: tuple[int, ...] = (512, 512, 32)
    inner_steps: StepsSetting = 10
    evaluation_sets: Count = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        most = f"at most {self.set_size}, the number of images in a set"
        self.expect("max_classes", self.max_classes <= self.set_size, most)
        least = f"at least {self.max_classes}, the largest number of characters in a set"
        enough = self.validation_characters >= self.max_classes
        self.expect("validation_characters", enough, least)

    @classmethod
    def paper(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> OmniglotTask:
        """The experiment as in the paper, evaluated on 8,000 sets of each part."""
        return cls(aggregation, seed=seed, evaluation_sets=8000)

    @classmethod
    def quick(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> OmniglotTask:
        """A smaller version that beats guessing after minutes on two cores. Meant for 3,000
        steps of Adam at 0.001 with a cosine schedule."""
        return cls(
            aggregation, embedding=64, batch_size=32, seed=seed, image_size=16,
            encoder=(8, 16, 32), potential=(128, 128, 16),
        )  # fmt: skip

    def network(self) -> nn.Module:
        size = self.embedding
        encoder = ImageEncoder(self.image_size, self.encoder, size)
        pooling: nn.Module
        if self.aggregation == "equilibrium":
            pooling = self.equilibrium_layer(size, size, self.potential, self.inner_steps)
        else:
            pooling = aggregation_from_name(self.aggregation, size, size, set_size=self.set_size)
        return OmniglotNetwork(encoder, pooling, size, self.max_classes, self.head_width)

    def data(self, device: torch.device) -> CharacterImages:
        """The images on the device; read at the first call."""
        return character_images(
            data_folder().absolute(), self.image_size, self.validation_characters, device
        )

    def facts(self) -> dict[str, Any]:
        """Characters of each part, and a digest of all images: evaluation sets are positions of
        images, which differ between the forms of the data."""
        data = self.data(torch.device("cpu"))
        characters = {part: pool.characters for part, pool in data.pools.items()}
        return {"characters": characters, "fingerprint": data.fingerprint()}

    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        """`images [num_steps, B, set_size]`, positions in `data`, and `num_classes [num_steps, B]`,
        of training characters only. A CPU and a GPU draw different sets."""
        generator = generator_for(device, "omniglot", "training", self.seed, first_step)
        sets = sample_sets(
            (num_steps, self.batch_size), self.data(device).pools[TRAIN], generator,
            set_size=self.set_size, max_classes=self.max_classes,
        )._asdict()  # fmt: skip
        return {name: shard.part(values, dim=1).contiguous() for name, values in sets.items()}

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        """The cross entropy, with the accuracy as a metric."""
        images, answer = batch["images"], batch["num_classes"] - 1
        logits = network(self.data(images.device).pixels[images])
        correct = (logits.argmax(-1) == answer).float().mean()
        return Loss(functional.cross_entropy(logits, answer), {"accuracy": correct})

    @torch.no_grad()
    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """Accuracy and cross entropy on sets of training, validation and test characters, and the
        accuracy on test sets for each number of characters."""
        metrics: dict[str, float] = {}
        for part in (TRAIN, VALIDATION, TEST):
            logits, answer = self.answers(network, part, device)
            metrics[f"{part}_accuracy"] = (logits.argmax(-1) == answer).double().mean().item()
            metrics[f"{part}_cross_entropy"] = functional.cross_entropy(logits, answer).item()
        for number, row in enumerate(confusion(logits, answer).tolist(), 1):  # of the test
            if any(row):
                metrics[f"{TEST}_accuracy_{number}"] = row[number - 1] / sum(row)
        return metrics

    @torch.no_grad()
    def write_results(self, network: nn.Module, device: torch.device, folder: Path) -> None:
        """The confusion matrices of sets of validation and test characters."""
        folder.mkdir(parents=True, exist_ok=True)
        for part in (VALIDATION, TEST):
            table = confusion(*self.answers(network, part, device)).tolist()
            rows = [("true", *range(1, len(table) + 1))]
            rows += [(number, *row) for number, row in enumerate(table, 1)]
            text = "".join(",".join(map(str, row)) + "\n" for row in rows)
            write_text(folder / f"confusion-{part}.csv", text)

    def answers(self, network: nn.Module, part: str, device: torch.device) -> tuple[Tensor, Tensor]:
        """The network's logits `[n, max_classes]` for the evaluation sets of a part, and the right
        position among them."""
        pixels, sets = self.data(device).pixels, self.held_out(part, device)
        logits = [network(pixels[images]).double() for images in sets.images.split(SETS_AT_ONCE)]
        return torch.cat(logits), sets.num_classes - 1

    def held_out(self, part: str, device: torch.device) -> CharacterSets:
        """The evaluation sets of a part: the same on every device and for every seed."""
        generator = generator_for(torch.device("cpu"), "omniglot", "held out", part)
        sets = sample_sets(
            (self.evaluation_sets,), self.data(device).pools[part], generator,
            set_size=self.set_size, max_classes=self.max_classes,
        )  # fmt: skip
        return CharacterSets(*(tensor.to(device) for tensor in sets))


def confusion(logits: Tensor, answer: Tensor) -> Tensor:
    """How many sets of `i + 1` characters were predicted to have `j + 1`, `[i, j]`."""
    size = logits.shape[1]
    pairs = answer * size + logits.argmax(-1)
    return torch.bincount(pairs, minlength=size * size).view(size, size)
