"""A run's state, to a checkpoint and back."""

from __future__ import annotations

from pathlib import Path

from equipool.training.checkpoint import Checkpoint, Checkpoints, read_checkpoint
from equipool.training.counts import Counts
from equipool.training.devices import Place
from equipool.training.history import Spikes
from equipool.training.journal import Journal
from equipool.training.step import Step

RECENT = "spikes/recent"


class Keeper:
    """Saves and restores a run. All processes must ask; the one that leads writes."""

    def __init__(
        self, folder: Path, keep_last: int, place: Place, step: Step, journal: Journal
    ) -> None:
        self.checkpoints = Checkpoints(folder, keep_last)
        self.place, self.step, self.journal = place, step, journal
        self.saved_step = 0

    def save(self, counts: Counts, spikes: Spikes) -> None:
        """Write a checkpoint."""
        self.place.average_(self.step.history.rows)
        self.saved_step = counts.step
        if not self.place.leads:
            return
        files = self.step.tensors()
        files["optimizer"] = files["optimizer"] | {RECENT: spikes.recent}
        self.journal.sync()
        self.checkpoints.save(files, counts.to_json(), counts.best)

    def restore(self, spikes: Spikes) -> Counts:
        """Go back to the newest checkpoint that is whole, or to the start where there is none."""
        if self.place.leads:
            self.checkpoints.clean()
        found = self._newest()
        if found is None:
            return Counts()
        counts = Counts.from_json(found.state)
        spikes.recent = found.tensors["optimizer"].pop(RECENT)
        spikes.count = counts.spikes
        self.step.fill(found.tensors, counts.step)
        self.saved_step = counts.step
        if self.place.leads:
            self.checkpoints.point(counts.step, counts.best)
        return counts

    def _newest(self) -> Checkpoint | None:
        found = self.checkpoints.newest(self.journal.say) if self.place.leads else None
        step = self.place.from_leader(None if found is None else found.step)
        if step is None or found is not None:
            return found
        return read_checkpoint(self.checkpoints.path(step))
