"""One method on one fold of a data set of bags, or on one test of the multiple-instance
assumption."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from equipool.estimators import BagStatistics, SetClassifier
from equipool.experiments.bags.data import CLASSICS, load_bags, load_folds

Array = NDArray[Any]
Bags = list[Array]

POOLINGS = (
    "equilibrium", "attention", "gated-attention", "mean", "sum", "max", "set-transformer", "pna",
)  # fmt: skip
# Shorter trainings of the networks in the first repeat, to show what choosing the length on the
# test fold gives.
FEWER_STEPS = (40, 80)


EXTREMES = ("mean", "min", "max", "count")
# By the seed.
BASELINES: dict[str, Callable[[int], Pipeline]] = {
    "extra-trees": lambda seed: make_pipeline(
        BagStatistics(EXTREMES), ExtraTreesClassifier(300, random_state=seed)
    ),
    "boosting": lambda seed: make_pipeline(
        BagStatistics(EXTREMES), HistGradientBoostingClassifier(random_state=seed)
    ),
    "svm": lambda seed: make_pipeline(BagStatistics(("mean",)), StandardScaler(), SVC()),
}
METHODS = (*POOLINGS, *BASELINES)


class Scores(NamedTuple):
    """How a classifier does on test bags. `peeked` is the accuracy with the threshold that is best
    on these bags themselves."""

    accuracy: float
    auc: float | None  # None if the bags are of one class
    peeked: float


def train(
    method: str, seed: int, bags: Bags, labels: Array, device: str = "auto",
    steps: int | None = None,
) -> Callable[[Bags], Array]:  # fmt: skip
    """Train a method with its default settings. Returns a function that scores bags: above 0 means
    class 1."""
    classifier: Any = (
        BASELINES[method](seed) if method in BASELINES else network(method, seed, device, steps)
    )
    classifier.fit(bags, labels)

    def score(others: Bags) -> Array:
        if hasattr(classifier, "decision_function"):
            return np.asarray(classifier.decision_function(others))
        return classifier.predict_proba(others)[:, 1] - 0.5

    return score


def network(method: str, seed: int, device: str, steps: int | None = None) -> SetClassifier:
    """The estimator with its defaults, whatever the method."""
    return SetClassifier(
        method, random_state=seed, device=device, max_iter="auto" if steps is None else steps
    )


def scored(scores: Array, labels: Array) -> Scores:
    """Scores above 0 mean class 1.

    Example:
        >>> scored(np.array([-0.3, -0.1, 0.1]), np.array([0, 1, 1]))
        Scores(accuracy=0.6666666666666666, auc=1.0, peeked=1.0)
    """
    both = len(np.unique(labels)) == 2
    thresholds = np.concatenate([[-np.inf], np.sort(scores)])
    best = max(np.mean((scores > one) == labels) for one in thresholds)
    return Scores(
        float(np.mean((scores > 0) == labels)),
        float(roc_auc_score(labels, scores)) if both else None,
        float(best),
    )


@dataclass(frozen=True)
class Trial:
    """A method on a fold."""

    dataset: str
    repeat: int
    fold: int
    method: str

    def run(self, data_dir: str | None, device: str) -> dict[str, Any]:
        """The row of the record."""
        torch.set_num_threads(1)  # trials run side by side
        bags, folds = load_bags(self.dataset, data_dir), load_folds(self.dataset, data_dir)
        trained = folds[self.repeat, self.fold]
        labels = bags.labels.numpy().astype(np.int64)
        learned, tested = (
            (bags.arrays(chosen.nonzero().flatten()), labels[chosen.numpy()])
            for chosen in (trained, ~trained)
        )
        seed = 1000 * self.repeat + self.fold
        begin = time.perf_counter()
        found = scored(train(self.method, seed, *learned, device)(tested[0]), tested[1])
        seconds = time.perf_counter() - begin
        peeked = [found.peeked]
        if self.method in POOLINGS and self.dataset in CLASSICS and self.repeat == 0:
            for steps in FEWER_STEPS:
                scores = train(self.method, seed, *learned, device, steps)(tested[0])
                peeked.append(scored(scores, tested[1]).peeked)
        return vars(self) | found._asdict() | {
            "peeked": max(peeked), "seed": seed, "train_bags": len(learned[1]),
            "test_bags": len(tested[1]), "seconds": round(seconds, 2),
        }  # fmt: skip


def all_trials(data_dir: str | None, datasets: tuple[str, ...]) -> list[Trial]:
    """Every method on every fold, the first repeat of all data sets first."""
    sizes = {name: load_folds(name, data_dir).shape[:2] for name in datasets}
    repeats = max(shape[0] for shape in sizes.values())
    return [
        Trial(name, repeat, fold, method)
        for repeat in range(repeats)
        for name, (own, folds) in sizes.items()
        if repeat < own
        for fold in range(folds)
        for method in METHODS
    ]


# Raff and Holt, "Reproducibility in Multiple Instance Learning: A Case For Algorithmic Unit Tests"
# (2023): a model that respects the assumption cannot use the shortcut in the training bags, which
# points the other way in the test bags.
ASSUMPTIONS = {
    "one concept": "a bag is positive if it has a positive element; a poison marks negative "
    "training bags and positive test bags",
    "two concepts": "a bag is positive if it has elements of both kinds; poison as above",
    "frequency": "a bag is positive if it has elements of both kinds; negative test bags have one "
    "kind many times",
}
CHANNELS, NEGATIVES = 16, 10


@dataclass(frozen=True)
class Assumption:
    """A method on one of these tests."""

    name: str
    method: str
    seed: int

    def run(self, num_bags: int, device: str) -> dict[str, Any]:
        """The row of the record: areas under the ROC curve on fresh bags drawn as the training bags
        are, and on bags where the shortcut misleads. Below one half, the model relies on it."""
        torch.set_num_threads(1)
        score = train(self.method, self.seed, *self.bags(num_bags, True, 0), device)
        areas = []
        for training, part in ((True, 1), (False, 2)):
            bags, labels = self.bags(num_bags, training, part)
            areas.append(scored(score(bags), labels).auc)
        return vars(self) | {
            "train_bags": num_bags, "usual_auc": areas[0], "shifted_auc": areas[1],
        }  # fmt: skip

    def bags(self, number: int, training: bool, part: int) -> tuple[Bags, Array]:
        """Bags of torchmil's generators. They draw from torch's own stream, which their `seed` does
        not set."""
        from torchmil import datasets

        generators = {
            "one concept": datasets.SCStandardMILDataset,
            "two concepts": datasets.MCStandardMILDataset,
            "frequency": datasets.FalseFrequencyMILDataset,
        }
        arguments = {"B": NEGATIVES} if self.name == "one concept" else {}
        with torch.random.fork_rng([]):
            torch.manual_seed(3 * self.seed + part)
            made = generators[self.name](D=CHANNELS, num_bags=number, train=training, **arguments)
        bags = [made[position]["X"].numpy() for position in range(len(made))]
        return bags, np.array([int(made[position]["Y"]) for position in range(len(made))])
