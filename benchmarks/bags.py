"""Pooling methods and baselines on bags of vectors, by cross-validation.

    python benchmarks/bags.py --jobs 16                     # in 16 processes
    python benchmarks/bags.py --dataset musk1 --repeats 1   # a part
    python benchmarks/bags.py --assumptions                 # the multiple-instance unit tests

Every method has its default settings on every data set. Trials that records/bags.jsonl has are
skipped, so an interrupted run resumes. Needs the tables (see bags_data.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bags_data import CLASSICS, DATASETS, Array, Bags, load_folds, split
from joblib import Parallel, delayed
from recording import arguments, header
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from equipool.estimators import BagStatistics, SetClassifier

RECORD = Path(__file__).parents[1] / "records" / "bags.jsonl"
POOLINGS = ("equilibrium", "attention", "gated-attention", "mean", "sum", "max", "set-transformer",
            "pna")  # fmt: skip
BASELINES = ("extra-trees", "boosting", "svm")
EXTREMES = ("mean", "min", "max", "count")
# Shorter trainings of the networks in the first repeat, to show what choosing the length on the
# test fold gives.
FEWER_STEPS = (40, 80)
# Raff and Holt, "Reproducibility in Multiple Instance Learning: A Case For Algorithmic Unit Tests"
# (2023): a model that respects the assumption cannot use the shortcut in the training bags, which
# points the other way in the test bags. By torchmil's generator.
ASSUMPTIONS = {
    "one concept": "SCStandardMILDataset",
    "two concepts": "MCStandardMILDataset",
    "frequency": "FalseFrequencyMILDataset",
}
TEST_BAGS, TEST_SEEDS, CHANNELS, NEGATIVES = 200, 3, 16, 10


def make_classifier(method: str, seed: int, device: str, steps: int | None = None) -> Any:
    """A method with its default settings."""
    if method == "extra-trees":
        trees = ExtraTreesClassifier(300, random_state=seed)
        return make_pipeline(BagStatistics(EXTREMES), trees)
    if method == "boosting":
        boosting = HistGradientBoostingClassifier(random_state=seed)
        return make_pipeline(BagStatistics(EXTREMES), boosting)
    if method == "svm":
        return make_pipeline(BagStatistics(("mean",)), StandardScaler(), SVC())
    return SetClassifier(method, random_state=seed, device=device, max_iter=steps or "auto")


def scores(classifier: Any, bags: Bags) -> Array:
    """Above 0 means class 1."""
    if hasattr(classifier, "decision_function"):
        return np.asarray(classifier.decision_function(bags))
    return classifier.predict_proba(bags)[:, 1] - 0.5


def peeked(found: Array, labels: Array) -> float:
    """Accuracy with the threshold that is best on these bags themselves.

    Example:
        >>> peeked(np.array([-0.3, -0.1, 0.1]), np.array([0, 1, 1]))
        1.0
    """
    thresholds = np.concatenate([[-np.inf], np.sort(found)])
    return float(max(np.mean((found > one) == labels) for one in thresholds))


@dataclass(frozen=True)
class Trial:
    """A method on a fold."""

    study = "folds"

    dataset: str
    repeat: int
    fold: int
    method: str

    def run(self, device: str) -> dict[str, Any]:
        """The row of the record."""
        (bags, labels), (others, truth) = split(self.dataset, self.repeat, self.fold)
        seed = 1000 * self.repeat + self.fold
        begin = time.perf_counter()
        found = scores(make_classifier(self.method, seed, device).fit(bags, labels), others)
        seconds = time.perf_counter() - begin
        best = [peeked(found, truth)]
        if self.method in POOLINGS and self.dataset in CLASSICS and self.repeat == 0:
            for steps in FEWER_STEPS:
                short = make_classifier(self.method, seed, device, steps).fit(bags, labels)
                best.append(peeked(scores(short, others), truth))
        return {
            "accuracy": float(np.mean((found > 0) == truth)),
            "auc": float(roc_auc_score(truth, found)) if len(set(truth)) == 2 else None,
            "peeked": max(best),
            "seconds": round(seconds, 2),
        }


@dataclass(frozen=True)
class Assumption:
    """A method on one of the multiple-instance unit tests."""

    study = "assumptions"

    name: str
    method: str
    seed: int

    def run(self, device: str) -> dict[str, Any]:
        """The row of the record: areas under the ROC curve on fresh bags drawn as the training bags
        are, and on bags where the shortcut misleads. Below one half, the model relies on it."""
        fitted = make_classifier(self.method, self.seed, device).fit(*self.bags(True, 0))
        areas = []
        for training, part in ((True, 1), (False, 2)):
            bags, labels = self.bags(training, part)
            areas.append(float(roc_auc_score(labels, scores(fitted, bags))))
        return {"train_bags": TEST_BAGS, "usual_auc": areas[0], "shifted_auc": areas[1]}

    def bags(self, training: bool, part: int) -> tuple[Bags, Array]:
        """Bags of torchmil's generators, which draw from torch's own stream."""
        from torchmil import datasets

        options = {"B": NEGATIVES} if self.name == "one concept" else {}
        generator = getattr(datasets, ASSUMPTIONS[self.name])
        with torch.random.fork_rng([]):
            torch.manual_seed(3 * self.seed + part)
            made = generator(D=CHANNELS, num_bags=TEST_BAGS, train=training, **options)
        drawn = [made[at] for at in range(len(made))]
        return [one["X"].numpy() for one in drawn], np.array([int(one["Y"]) for one in drawn])


def run_trial(trial: Trial | Assumption, device: str) -> dict[str, Any]:
    torch.set_num_threads(1)  # trials run side by side
    return {"study": trial.study} | asdict(trial) | trial.run(device)


def planned(chosen: Any) -> list[Trial | Assumption]:
    """Every method on every fold, the first repeat of all data sets first."""
    if chosen.assumptions:
        return [
            Assumption(name, method, seed)
            for seed in range(TEST_SEEDS)
            for name in ASSUMPTIONS
            for method in chosen.method
        ]
    return [
        Trial(name, repeat, fold, method)
        for repeat in range(chosen.repeats)
        for name in chosen.dataset
        for fold in range(load_folds(name).shape[1])
        for method in chosen.method
    ]


def missing(trials: Sequence[Trial | Assumption], file: Path) -> list[Trial | Assumption]:
    """The trials that the record has no line of."""
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines() if file.exists() else [])
    known = [line for line in lines if "header" not in line]
    return [
        trial
        for trial in trials
        if not any(({"study": trial.study} | asdict(trial)).items() <= row.items() for row in known)
    ]


def main() -> None:
    methods = (*POOLINGS, *BASELINES)
    chosen = arguments(
        __doc__, dataset=DATASETS, method=methods, repeats=5, jobs=1, assumptions=False
    )
    file = chosen.out or RECORD
    trials = missing(planned(chosen), file)
    with file.open("a", encoding="utf-8") as stream:
        if trials:
            head = header(chosen.device) | {"networks": SetClassifier().get_params()}
            stream.write(json.dumps({"study": trials[0].study, "header": head}) + "\n")
        work = (delayed(run_trial)(trial, chosen.device.type) for trial in trials)
        done = Parallel(chosen.jobs, return_as="generator_unordered")(work)
        for count, row in enumerate(done, 1):
            stream.write(json.dumps(row, separators=(",", ":")) + "\n")
            stream.flush()
            print(f"{count} of {len(trials)}", *row.values(), flush=True)


if __name__ == "__main__":
    main()
