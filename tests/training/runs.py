"""Runs of the toy, and what is left of a run, to be compared."""

from toy import Toy, config

from equipool.training import Progress, train


class Heard(Progress):
    """Keeps what is shown."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def message(self, text):
        self.texts.append(text)

    def __contains__(self, part):
        return any(part in text for text in self.texts)


def run(tmp_path, task=None, training=None, name="run", **more):
    """Train quietly; the directory."""
    more = {"device": "cpu", "progress": Heard()} | more
    train(task or Toy(), training or config(), tmp_path / name, **more)
    return tmp_path / name
