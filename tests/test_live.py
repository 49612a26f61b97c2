"""Live sets: after any edits, outputs are those of a solve from scratch, to the tolerance."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipool
import known_minima
from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    LearnedStart,
    StronglyConvexNesterov,
    ToTolerance,
)
from equipool.live import LiveSets

TOLERANCE = 1e-6
TO_TOLERANCE = ToTolerance(TOLERANCE, max_steps=5000)
SECRET = 1234.5678


def make_layer(**changes):
    """A convex energy, in float64: its error bound is known."""
    torch.manual_seed(0)
    arguments = {
        "potential": ConvexPotential(3, 4, hidden=(8,)),
        "solver": StronglyConvexNesterov(),
        "steps": TO_TOLERANCE,
        "start": LearnedStart(4, 0.25),
    }
    return EquilibriumAggregation(3, 4, **arguments | changes).double().eval()


def draw(*shape, generator=None):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def make_empty(num_sets):
    return LiveSets(make_layer(), draw(0, 3), torch.zeros(0).long(), dim_size=num_sets)


def make_live(num_sets=6, num_elements=40, layer=None):
    """Live sets, of which the last is empty."""
    layer = make_layer() if layer is None else layer
    torch.manual_seed(1)
    index = torch.randint(0, num_sets - 1, (num_elements,))
    return LiveSets(layer, draw(num_elements, 3), index, dim_size=num_sets)


def distance_to_scratch(live):
    """Of each set; and the largest that the bounds of both solves allow."""
    x, index, _ = live.elements()
    scratch = live.layer.solve(x, index, dim_size=live.num_sets, steps=live._steps)
    bound = live.solution.error_bound + scratch.error_bound
    return (live.y - scratch.y).norm(dim=-1).detach(), bound


class Model:
    """What live sets hold, as plain Python: the set and the features of each id."""

    def __init__(self, num_sets):
        self.num_sets, self.elements, self.gone = num_sets, {}, set()

    def edit(self, live, kind, some, generator):
        """One edit of both. `some` chooses how many elements, and which."""
        ids = sorted(self.elements)
        chosen = ids[some % max(len(ids), 1) :: 1 + some % 3][:5]
        if kind == "add":
            count = some % 5
            x = draw(count, 3, generator=generator)
            index = torch.tensor([(some * 7 + i * i) % self.num_sets for i in range(count)]).long()
            found = live.add(x, index).tolist()
            assert not set(found) & (set(self.elements) | self.gone)  # an id is never used again
            self.elements |= zip(found, zip(index.tolist(), x, strict=True), strict=True)
        elif kind == "remove":
            live.remove(chosen)
            self.gone |= {*chosen}
            for one in chosen:
                del self.elements[one]
        elif kind == "reload":
            state = {name: tensor.clone() for name, tensor in live.state_dict().items()}
            live.load_state_dict(state)
        else:
            x = draw(len(chosen), 3, generator=generator)
            live.replace(torch.tensor(chosen).long(), x)
            for one, row in zip(chosen, x, strict=True):
                self.elements[one] = (self.elements[one][0], row)

    def compare(self, live):
        """Elements to the bit, outputs to the certificate."""
        x, index, ids = live.elements()
        found = {i: (s, tuple(row)) for i, s, row in zip(
            ids.tolist(), index.tolist(), x.tolist(), strict=True)}  # fmt: skip
        assert found == {i: (s, tuple(row.tolist())) for i, (s, row) in self.elements.items()}
        assert live.solution.converged.all()
        assert (live.solution.residual <= TOLERANCE).all()
        distance, bound = distance_to_scratch(live)
        assert (distance <= bound).all()
        # The bound is no empty promise: it is near the tolerance.
        assert (live.solution.error_bound < 1e4 * TOLERANCE).all()
        empty = torch.bincount(index, minlength=self.num_sets) == 0
        assert (live.y[empty] == 0.25).all()


KINDS = ["add", "add", "remove", "replace", "read", "reload"]


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99)), max_size=30),
    st.integers(0, 2**31),
)
def test_any_edits_give_what_a_plain_model_gives(edits, seed):
    live, model = make_empty(4), Model(4)
    generator = torch.Generator().manual_seed(seed)
    for kind, some in edits:
        if kind == "read":
            model.compare(live)
        else:
            model.edit(live, kind, some, generator)
    model.compare(live)


def test_ids_are_in_the_order_of_the_elements():
    """Without padding."""
    x, mask = draw(2, 3, 3), torch.tensor([[1, 1, 0], [1, 0, 1]]).bool()
    live = LiveSets(make_layer(), x, mask=mask)
    held, index, ids = live.elements()
    assert torch.equal(held, x[mask][ids])
    assert torch.equal(index, torch.tensor([0, 0, 1, 1])[ids])
    assert live.add(x[0, :1], 0).tolist() == [4]


class TestWhatIsSolved:
    def test_only_touched_sets(self):
        live = make_live()
        before, steps = live.y, live.solution.num_steps
        copy = before.clone()
        _, index, ids = live.elements()
        touched = {1, 4, int(index[ids == 0])}
        live.add(draw(2, 3), [1, 4])
        live.remove(0)
        changed = (live.y != before).any(-1).nonzero().squeeze(-1)
        assert set(changed.tolist()) == touched
        same = [number for number in range(6) if number not in touched]
        assert torch.equal(live.solution.num_steps[same], steps[same])
        assert torch.equal(before, copy)  # what was read before stays as it was

    def test_a_warm_start_takes_fewer_steps(self):
        live = LiveSets(make_layer(steps=ToTolerance(1e-3, max_steps=1000)), draw(2000, 3))
        from_scratch = int(live.solution.num_steps)
        live.replace(7, draw(1, 3))
        assert int(live.solution.num_steps) <= from_scratch / 5


class TestUnlearning:
    """Nothing that exceeds the tolerance is left of a removed element."""

    def test_memory_holds_no_features(self):
        live = make_live()
        ids = live.add(torch.full((3, 3), SECRET, dtype=torch.float64), [1, 1, 2])
        places = list(live._x)
        live.add(draw(1, 3), 1)
        places += live._x
        live.replace(ids[:1], draw(1, 3))
        live.remove(ids[1:])
        places += live._x
        assert not any(bool((place == SECRET).any()) for place in places)
        assert not any(bool((t == SECRET).any()) for t in live.state_dict().values())

    def test_the_callers_elements_are_left_alone(self):
        x = draw(5, 3)
        copy, live = x.clone(), LiveSets(make_layer(), x)
        live.remove([0, 2])
        state = live.state_dict()
        live.load_state_dict(state)
        live.remove([1])
        assert torch.equal(x, copy)
        assert state["x"].ne(0).all()

    def test_an_element_that_took_the_output_far_away_leaves_nothing(self):
        """Steps of a bounded length take too long to come back: it is solved from scratch."""

        class Steep(torch.nn.Module):
            def forward(self, x, y):
                return (1 + (y - x).square()).sqrt().sum(-1)

        layer = EquilibriumAggregation(
            1, 1, potential=Steep(), scaling="mean", regularizer=0,
            solver=equipool.GradientDescent(0.5), steps=ToTolerance(1e-3, 60),
        )  # fmt: skip
        live = LiveSets(layer, torch.tensor([[0.2], [0.4]]))
        clean = live.y
        far = live.add(torch.full((3, 1), 1e4), 0)
        for _ in range(20):  # each read takes the output further
            live.replace(far, torch.full((3, 1), 1e4))
            away = live.y
        assert away.item() > 100
        assert not live.solution.converged.any()
        live.remove(far)
        assert live.solution.converged.all()
        assert (live.y - clean).abs().item() < 0.01


def test_a_set_that_is_not_finite_recovers():
    live = make_live()
    clean = live.y
    bad = draw(2, 3)
    bad[0, 1], bad[1, 2] = torch.nan, torch.inf
    ids = live.add(bad, [2, 0])
    assert live.y[[0, 2]].isnan().all()
    assert torch.equal(live.y[[1, 3, 4, 5]], clean[[1, 3, 4, 5]])
    assert live.solution.converged.tolist() == [False, True, False, True, True, True]
    live.load_state_dict(live.state_dict())
    live.remove(ids[0])
    live.replace(ids[1], bad[1:].nan_to_num(posinf=0.0))
    assert live.solution.converged.all()
    distance, bound = distance_to_scratch(live)
    assert (distance <= bound).all()


@pytest.mark.parametrize("change", ["training", "scaling", "steps", "refresh"])
def test_a_changed_layer_is_noticed(change):
    live = make_live()
    before, layer = live.y, live.layer
    x, index, _ = live.elements()
    if change == "training":
        layer(x, index).square().sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
    elif change == "scaling":
        layer.scaling = "mean"
    elif change == "steps":
        layer.steps = ToTolerance(1e-9, max_steps=9999)
    else:
        layer.potential.slope.bias.data.add_(1)  # which no tensor tells
        live.refresh()
    assert not torch.equal(live.y, before)
    y = layer(x, index, dim_size=live.num_sets)
    torch.testing.assert_close(live.y, y, rtol=0, atol=1e-12)


def test_a_state_of_another_layer_is_solved_again():
    live, layer = make_live(), make_layer()
    with torch.no_grad():
        layer.potential.slope.bias.add_(1)
    other, same = LiveSets(layer, draw(1, 3)), LiveSets(live.layer, draw(1, 3))
    for one in (other, same):
        one.load_state_dict(live.state_dict())
    distance, bound = distance_to_scratch(other)
    assert (distance <= bound).all()
    assert not torch.equal(other.y, live.y)
    assert torch.equal(same.y, live.y)
    with pytest.raises(KeyError):
        same.remove(40)


class TestModes:
    def test_training_mode_and_dropout(self):
        potential = equipool.ResNetPotential(3, 4, (8, 4), dropout=0.5)
        layer = make_layer(potential=potential, solver=None, steps=ToTolerance(0.1, 50)).train()
        live = make_live(layer=layer)
        with torch.autocast("cpu", torch.bfloat16):
            first = live.y
        assert layer.training
        live.refresh()
        assert torch.equal(live.y, first)

    def test_inference_mode_and_gradients_change_nothing(self):
        live, plain, x = make_live(), make_live(), draw(1, 3)
        with torch.inference_mode():
            live.remove(live.add(x.clone(), 0))
            ids = live.add(x.clone(), 0)
            y = live.y
        assert not any(tensor.is_inference() for tensor in live.solution)
        plain.add(x.clone().requires_grad_(), 0)
        torch.testing.assert_close(plain.y, y)
        assert not plain.y.requires_grad
        live.remove(ids)
        assert live.solution.converged.all()

    def test_short_elements(self):
        x = torch.tensor([[1.0, 2.0], [2.0, 4.0]]).bfloat16()
        live = LiveSets(known_minima.mean(2), x, steps=ToTolerance(1e-3))
        assert live.y.dtype == torch.bfloat16
        assert live.y.tolist() == [[1.5, 3.0]]
        live.remove(1)
        assert live.y.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("edit", "error", "named"),
    [
        (lambda s: s.remove([1, 7]), KeyError, r"ids has \[7\]"),
        (lambda s: s.remove([1, 2, 2]), ValueError, "expected each id once"),
        (lambda s: s.remove(torch.ones(1)), TypeError, "ids has dtype torch.float32"),
        (lambda s: s.add(draw(1, 2), 0), ValueError, "x has 2 channels"),
        (lambda s: s.replace(0, draw(3)), ValueError, r"x has shape \[3\]"),
        (lambda s: s.add(torch.ones(1, 3), 0), TypeError, "x has dtype torch.float32"),
        (lambda s: s.add([[1.0, 2.0, 3.0]], 0), TypeError, "x is a list"),
        (lambda s: s.replace(0, draw(2, 3)), ValueError, "x has 2 elements, expected 1"),
        (lambda s: s.add(draw(1, 3)), ValueError, "index is None"),
        (lambda s: s.add(draw(2, 3), [0, 6]), ValueError, "index has the value 6"),
        (lambda s: s.add(draw(1, 3), -1), ValueError, "negative value -1"),
        (lambda s: s.add(draw(2, 3), [0, 1, 2]), RuntimeError, "must match the existing size"),
        (lambda s: s.add(draw(1, 3), torch.tensor([True])), TypeError, "index has dtype"),
        (lambda s: LiveSets(make_layer(steps=10), draw(2, 3)), ValueError, "steps is"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(edit, error, named):
    live = make_live()
    live.remove(7)
    before, y = live.elements(), live.y
    with pytest.raises(error, match=named):
        edit(live)
    assert all(map(torch.equal, before, live.elements()))
    assert torch.equal(live.y, y)
