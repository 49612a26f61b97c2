"""What the README shows and says."""

import re

import pytest
import torch
from torch_geometric.nn import aggr

from python_blocks import ROOT, run_page

README = (ROOT / "README.md").read_text()


def test_examples():
    names = run_page("README.md")
    assert names["y"].shape == (3, 32)
    torch.testing.assert_close(names["solution"].y, names["y"])
    assert all(parameter.grad is not None for parameter in names["pool"].parameters())


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_commands_are_targets():
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"make ([a-z-]+)", README))
    assert {"demo", "test"} <= commands
    for command in commands:
        assert re.search(rf"^{command}:", makefile, re.MULTILINE), command


class TestPackagedLayer:
    """The README's words about the layer that PyTorch Geometric ships."""

    @pytest.fixture
    def theirs(self):
        torch.manual_seed(0)
        return aggr.EquilibriumAggregation(4, 8, num_layers=[32, 16], grad_iter=10)

    @pytest.fixture
    def batch(self):
        torch.manual_seed(1)
        return torch.randn(64 * 5, 4), torch.arange(64).repeat_interleave(5)

    def test_is_the_version_that_is_installed_for_the_tests(self):
        spoken_of = re.search(r"version (\d+\.\d+\.\d+)", README)[1]
        assert f"torch_geometric=={spoken_of}\n" in (ROOT / "constraints.txt").read_text()

    def test_depends_on_the_batch(self, theirs, batch):
        x, index = batch
        alone, together = theirs(x[:5])[0], theirs(x, index)[0]
        assert (alone - together).norm() > alone.norm()

    def test_does_not_count(self, theirs, batch):
        x = batch[0][:5]
        torch.testing.assert_close(theirs(x.repeat(3, 1)), theirs(x), rtol=0, atol=1e-5)

    def test_steps_by_another_number_than_it_is_given(self):
        optimizer = aggr.equilibrium.MomentumOptimizer(learning_rate=0.1)
        assert optimizer.learning_rate.item() == pytest.approx(0.744, abs=5e-4)

    def test_fails_in_bfloat16(self, theirs, batch):
        x, index = batch
        with pytest.raises(RuntimeError, match="dtype"):
            theirs.bfloat16()(x.bfloat16(), index)

    def test_fails_in_inference_mode(self, theirs, batch):
        with torch.inference_mode(), pytest.raises(RuntimeError, match="does not require grad"):
            theirs(*batch)

    def test_fails_with_ptr(self, theirs, batch):
        with pytest.raises(NotImplementedError, match="'index'"):
            theirs(batch[0], ptr=torch.arange(0, 321, 5))

    def test_keeps_a_graph_without_gradients(self, theirs, batch):
        with torch.no_grad():
            assert theirs(*batch).requires_grad
