"""Labels of bags: molecules as shapes, images as segments, jets as particles, customers as
purchases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.baselines import AGGREGATIONS
from equipool.experiments.bags.data import (
    DATASETS,
    Bags,
    Split,
    gather_bags,
    load_bags,
    load_folds,
    split_bags,
)
from equipool.experiments.data import data_folder
from equipool.experiments.inner_loop import Aggregation, InnerLoop, StepsSetting
from equipool.experiments.molecules.batching import Capacity, Epochs, choose_capacity, pack
from equipool.experiments.molecules.labels import roc_auc
from equipool.experiments.molecules.storage import send
from equipool.training import Batch, Loss, Shard, Task, track

BAGS_AT_ONCE = 256  # in an evaluation
POSITIVE = ("width", "embedding", "head_width", "batch_size")


@dataclass(frozen=True)
class BagsTask(InnerLoop, Task):
    """Classify bags of vectors, with the cross entropy as the loss.

    Trained on the training bags of one fold, except for a share that is held out for validation,
    and tested on the rest. The best checkpoint has the largest area under the ROC curve on the
    validation bags; the test bags choose nothing.

    Args:
        aggregation: pooling method.
        dataset: musk1, musk2, fox, tiger, elephant, jets or cdnow.
        repeat: which of the five divisions into folds.
        fold: fold to test on: 0 to 9; for jets and cdnow 0 to 4.
        valid_share: share of the fold's training bags held out for validation, always the same
            ones.
        width: size of an encoded element.
        embedding: size of the pooled vector.
        head_width: hidden width of the network after the pooling.
        dropout: dropout rate of the encoded elements and of the pooled vector.
        batch_size: largest batch size, in bags.
        seed: random seed of the weights and the order of the training bags.
        potential: sizes of the potential's layers.
        inner_steps: steps of the inner optimiser.
    """

    name: ClassVar[str] = "bags"
    monitor: ClassVar[str] = "valid_auc"
    lower_is_better: ClassVar[bool] = False
    reported: ClassVar[tuple[str, ...]] = ("test_auc", "test_accuracy")

    aggregation: Aggregation = "equilibrium"
    dataset: str = "jets"
    repeat: int = 0
    fold: int = 0
    valid_share: float = 0.125
    width: int = 64
    embedding: int = 32
    head_width: int = 64
    dropout: float = 0.0
    batch_size: int = 64
    seed: int = 0
    potential: tuple[int, ...] = (64, 32, 16)
    inner_steps: StepsSetting = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in POSITIVE:
            self.expect(name, getattr(self, name) >= 1, "1 or more")
        for name in ("repeat", "fold"):
            self.expect(name, getattr(self, name) >= 0, "0 or more")
        self.expect("dropout", 0 <= self.dropout < 1, "at least 0 and less than 1")
        self.expect("valid_share", 0 < self.valid_share < 1, "between 0 and 1")
        for name, known in (("aggregation", AGGREGATIONS), ("dataset", DATASETS)):
            self.expect(name, getattr(self, name) in known, f"one of {list(known)}")

    @classmethod
    def quick(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> BagsTask:
        """Jets with inner steps of bounded length, which train well at once. Meant for 2,000 steps
        (30 epochs) of Adam at 0.001 with a cosine schedule: minutes on one core."""
        solver = "nesterov:momentum=0.5,max_step=0.5,curvature_safe=true"
        return cls(aggregation, seed=seed, solver=solver)

    @classmethod
    def paper(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> BagsTask:
        """The paper's inner loop: momentum 0.9, steps of any length, ten of them. The paper has no
        experiment of this kind."""
        return cls(aggregation, seed=seed, embedding=64, potential=(128, 64, 32))

    @cached_property
    def _loaded(self) -> dict[Any, TrainingBags]:
        """By data folder and device. A captured step reads this memory for as long as it lives."""
        return {}

    def training_bags(self, device: torch.device) -> TrainingBags:
        """The data on the device, and what follows from it; read at the first call."""
        device = torch.empty(0, device=device).device  # cuda as cuda:0, as tensors name it
        key = (data_folder().absolute(), device)
        if key not in self._loaded:
            split = split_bags(self.dataset, self.repeat, self.fold, self.valid_share)
            if not all(map(len, split)):
                sizes = dict(zip(split._fields, map(len, split), strict=True))
                raise ValueError(
                    f"valid_share is {self.valid_share}, which leaves a part of {self.dataset} "
                    f"empty: {sizes}"
                )
            bags = load_bags(self.dataset)
            self._loaded[key] = TrainingBags(bags, split, self.batch_size, self.seed, device)
        return self._loaded[key]

    def facts(self) -> dict[str, Any]:
        """The number of bags in each part, and digests of the data and the folds."""
        found = self.training_bags(torch.device("cpu"))
        parts = dict(zip(found.split._fields, map(len, found.split), strict=True))
        tested = (~load_folds(self.dataset)[self.repeat, self.fold]).nonzero().flatten()
        return {
            "bags": parts,
            "fingerprint": found.bags.fingerprint(),
            "first_tested": tested[:10].tolist(),
        }

    def network(self) -> nn.Module:
        # estimators need scikit-learn, which other experiments do not
        from equipool.estimators.network import BagNetwork

        found, rival = self.training_bags(torch.device("cpu")), self.aggregation != "equilibrium"
        network = BagNetwork(
            found.bags.x.shape[1], 1, aggregation=self.aggregation if rival else "mean",
            encoder=(self.width,), channels=self.embedding, head=(self.head_width,),
            dropout=self.dropout, set_size=found.usual_size,
        )  # fmt: skip
        if not rival:
            network.aggregation = self.equilibrium_layer(
                self.width, self.embedding, self.potential, self.inner_steps
            )
        return network

    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        """`bags [num_steps, G]`, positions of training bags, -1 for empty places, and
        `present [num_steps]`: the number of bags in the whole batch divided by the number of
        processes."""
        positions = self.training_bags(device).epochs.batches(first_step, num_steps)
        present = (positions >= 0).sum(1) / shard.world
        own = shard.part(positions, 1).contiguous()
        return {"bags": send(own, device), "present": send(present, device)}

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        """The mean cross entropy of the bags."""
        positions = batch["bags"]
        found = self.training_bags(positions.device)
        logits = found.logits(network, positions, found.capacity)
        labels = found.bags.labels[positions.clamp(min=0)]
        losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return Loss(torch.where(positions < 0, 0, losses).sum() / batch["present"])

    @torch.no_grad()
    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """Area under the ROC curve, accuracy and cross entropy on validation and test bags."""
        found = self.training_bags(device)
        metrics = {}
        for part in ("valid", "test"):
            positions = getattr(found.split, part)
            logits = found.predict(network, positions)
            labels = found.bags.labels[positions.to(device)].double()
            losses = functional.binary_cross_entropy_with_logits(logits, labels)
            metrics[f"{part}_auc"] = float(roc_auc(logits[:, None], labels[:, None]))
            metrics[f"{part}_accuracy"] = float(((logits > 0) == (labels > 0)).double().mean())
            metrics[f"{part}_loss"] = float(losses)
        return metrics


class TrainingBags:
    """A data set on a device, scaled by its training elements; the bags of each part, and the
    training batches."""

    def __init__(
        self, bags: Bags, split: Split, batch_size: int, seed: int, device: torch.device
    ) -> None:
        self.sizes, self.split = bags.sizes, split
        self.bags = bags.scaled_by(split.train).to(device)
        sizes = self.sizes[split.train]
        self.usual_size = max(round(float(sizes.double().mean())), 1)
        self.capacity = _capacity(batch_size, sizes)
        self.epochs = Epochs(split.train, sizes, torch.zeros_like(sizes), self.capacity, seed)

    def logits(self, network: nn.Module, positions: Tensor, capacity: Capacity) -> Tensor:
        """The network's logits for `positions [G]`, -1 for none."""
        x, index, mask = gather_bags(self.bags, positions, capacity.atoms)
        return network(x, index, mask=mask, dim_size=len(positions)).squeeze(-1)

    def predict(self, network: nn.Module, positions: Tensor) -> Tensor:
        """The network's logits for the bags at these positions, `[n]`, float64, on the device."""
        sizes = self.sizes[positions]
        capacity = _capacity(min(BAGS_AT_ONCE, len(positions)), sizes)
        places = pack(sizes, torch.zeros_like(sizes), capacity)
        chosen = torch.where(places < 0, -1, positions[places]).to(self.bags.x.device)
        found = [self.logits(network, some, capacity).double() for some in track(chosen)]
        return torch.cat(found)[(chosen >= 0).flatten()]


def _capacity(number: int, sizes: Tensor) -> Capacity:
    """That of molecules without bonds."""
    return choose_capacity(number, sizes, torch.zeros_like(sizes))
