"""Means by the weights of attention and by any distance, against the exact answer."""

import math
import statistics

import torch
from multisets import euclidean, make_batch, pool

from cases import assert_near
from equipool import LearnedStart, closed_form


class TestAttention:
    query = torch.tensor([0.8, -0.5, 0.3], dtype=torch.float64)

    def layer_for(self, sets, shift, error=1e-12):
        """A layer whose search has arrived: each step multiplies the error by 1 - mean weight."""
        means = [(x @ self.query - shift).exp().mean().item() for x in sets if len(x)]
        assert max(means) < 2, "the step of a half would not converge"
        slowest = max(abs(1 - mean) for mean in means)
        steps = math.ceil(math.log(error) / math.log(slowest))
        return closed_form.attention(self.query, shift=shift, num_steps=steps)

    def sets(self):
        return [x / 4 for x in make_batch(3)]

    def test_is_the_softmax_weighted_mean(self):
        sets = self.sets()
        y = pool(self.layer_for(sets, shift=0.5), sets)
        for x, row in zip(sets, y, strict=True):
            weights = (x @ self.query - 0.5).exp()
            if len(x):
                expected = torch.softmax(x @ self.query, 0) @ x
                assert_near(row, torch.cat([expected, weights.mean()[None]]), 1e-10)
            else:
                assert (row == 0).all()

    def test_is_not_what_the_appendix_says(self):
        x = self.sets()[4]
        y = self.layer_for([x], shift=0.0)(x)[0]
        weighted = ((x @ self.query).exp()[:, None] * x).mean(0)
        assert (y[:-1] - weighted).abs().max() > 0.1
        assert (y[:-1] / y[-1] - torch.softmax(x @ self.query, 0) @ x).abs().max() > 0.1

    def test_shift_keeps_large_scores_in_range(self):
        x = torch.tensor([[1000.0], [999.0], [998.5]])
        query = torch.ones(1)
        lost = closed_form.attention(query).solve(x)
        assert not lost.finite
        assert not lost.converged
        found = closed_form.attention(query, shift=1000.0)(x)[0, :-1]
        # Steps end where they fall below the resolution of float32 at 1000, 6e-5: the error left
        # is that over half the mean weight, 0.53.
        assert_near(found, torch.softmax(x @ query, 0) @ x, 2e-6)

    def test_gradients_are_those_of_softmax(self):
        x = self.sets()[5].requires_grad_()
        layer = self.layer_for([x.detach()], shift=0.5, error=1e-20)
        along = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
        inputs = (x, layer.potential.query)
        found = torch.autograd.grad(layer(x)[0, :-1] @ along, inputs)
        exact = (torch.softmax(x @ layer.potential.query, 0) @ x) @ along
        for a, b in zip(found, torch.autograd.grad(exact, inputs), strict=True):
            assert_near(a, b, 1e-9)

    def test_reset_returns_to_the_given_query(self):
        layer = closed_form.attention(self.query)
        with torch.no_grad():
            layer.potential.query.add_(1)
        layer.reset_parameters()
        assert torch.equal(layer.potential.query, self.query)
        assert list(layer.potential.state_dict()) == ["query"]


class TestFrechetMean:
    def test_euclidean_distance_gives_the_mean(self):
        sets = make_batch(3)
        # Elements meet y in the single and the all-equal set: d is not smooth there, d^2 is.
        y = pool(closed_form.frechet_mean(3, euclidean, num_steps=150), sets)
        assert_near(y, pool(closed_form.mean(3), sets), 1e-12)  # 0.8^150 < 1e-14

    def test_a_rounded_root_trains_with_elements_at_the_start(self):
        def rounded(x, y):
            return ((x - y).square().sum(-1) + 1e-30).sqrt()

        x = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
        closed_form.frechet_mean(2, rounded, num_steps=100).double()(x).sum().backward()
        assert_near(x.grad, torch.full((3, 2), 1 / 3).double(), 1e-6)

    def test_logarithms_give_the_geometric_mean(self):
        sets = [torch.tensor(v).double()[:, None] for v in ([1.0, 4.0], [0.5, 0.5, 2.0], [3.0])]
        layer = closed_form.frechet_mean(
            1,
            lambda x, y: (x.log() - y.log()).abs().sum(-1),
            start=LearnedStart(1, 1.0, learnable=False).double(),
            num_steps=1500,
        )
        # The curvature at the minimum m is 2 / m^2 >= 2 / 9, so the factor is 0.98 at most.
        expected = [statistics.geometric_mean(x.flatten().tolist()) for x in sets]
        assert_near(pool(layer, sets)[:, 0], torch.tensor(expected, dtype=torch.float64), 1e-12)

    def test_angles_are_averaged_across_the_seam(self):
        def arc(x, y):
            return (torch.remainder(x - y + math.pi, 2 * math.pi) - math.pi).abs().sum(-1)

        angles = torch.tensor([[2.9], [-3.0], [-3.1], [3.1]], dtype=torch.float64)
        start = LearnedStart(1, 2.0, learnable=False).double()
        y = closed_form.frechet_mean(1, arc, start=start, num_steps=200)(angles)
        unrolled = torch.remainder(angles, 2 * math.pi).mean()
        assert_near(y[0, 0], unrolled, 1e-12)

    def test_distance_may_be_a_module(self):
        class Mahalanobis(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.tensor([1.0, 0.5, 2.0]).double())

            def forward(self, x, y):
                return torch.linalg.vector_norm(self.scale * (x - y), dim=-1)

        sets = make_batch(3)
        layer = closed_form.frechet_mean(3, Mahalanobis(), num_steps=600)
        learned = [name for name, one in layer.named_parameters() if one.requires_grad]
        assert learned == ["potential.distance.scale"]
        # The curvatures are 2, 0.5 and 8: times 0.1, the slowest factor is 0.95.
        assert_near(pool(layer, sets), pool(closed_form.mean(3), sets), 1e-12)
