"""Runs of the toy."""

from toy import Toy, config

from equipool.training import train


def run(tmp_path, task=None, training=None, name="run", **more):
    """Train quietly on a CPU; the directory."""
    more = {"device": "cpu", "progress": False} | more
    train(task or Toy(), training or config(), tmp_path / name, **more)
    return tmp_path / name
