"""Tasks whose data is drawn, small enough for a test."""

from equipool.experiments.median import MedianTask
from equipool.experiments.omniglot.task import OmniglotTask

MEDIAN = MedianTask(
    aggregation="mean", embedding=4, batch_size=6, set_size=10, width=8, evaluation_sets=3000
)
OMNIGLOT = OmniglotTask(
    "mean", embedding=8, batch_size=6, set_size=5, max_classes=3, image_size=8,
    validation_characters=6, encoder=(4, 4), head_width=8, potential=(8, 8, 4), inner_steps=2,
    evaluation_sets=200,
)  # fmt: skip
