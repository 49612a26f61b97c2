"""Live sets: after any edits, outputs are those of a solve from scratch, to the tolerance."""

import json
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import equipool
from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    LearnedStart,
    NormalStart,
    ResNetPotential,
    Stream,
    StronglyConvexNesterov,
    ToTolerance,
    closed_form,
)
from python_blocks import ROOT, run_page
from shown_numbers import table_rows

TOLERANCE = 1e-6
TO_TOLERANCE = ToTolerance(TOLERANCE, max_steps=5000)


def make_layer(start=None, **changes):
    """A convex energy, in float64: its error bound is known."""
    torch.manual_seed(0)
    arguments = {
        "potential": ConvexPotential(3, 4, hidden=(8,)),
        "solver": StronglyConvexNesterov(),
        "steps": TO_TOLERANCE,
        "start": LearnedStart(4, 0.25) if start is None else start,
    }
    return EquilibriumAggregation(3, 4, **arguments | changes).double().eval()


def draw(*shape, generator=None):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def make_stream(num_sets=6, num_elements=40, layer=None):
    """A stream, of whose sets the last is empty."""
    layer = make_layer() if layer is None else layer
    torch.manual_seed(1)
    index = torch.randint(0, num_sets - 1, (num_elements,))
    return Stream(layer, draw(num_elements, 3), index, dim_size=num_sets)


class Model:
    """What a stream holds, as plain Python: the set and the features of each id."""

    def __init__(self, num_sets):
        self.num_sets, self.elements = num_sets, {}

    def edit(self, stream, kind, some, generator):
        """One edit of both. `some` chooses how many elements, and which."""
        ids = sorted(self.elements)
        chosen = ids[some % max(len(ids), 1) :: 1 + some % 3][:5]
        if kind == "add":
            x, index = draw(some % 5, 3, generator=generator), self.sets_of(some)
            found = stream.add(x, index).tolist()
            assert not set(found) & set(self.elements)
            self.elements |= {
                i: (s, row) for i, s, row in zip(found, index.tolist(), x, strict=True)
            }
        elif kind == "remove":
            stream.remove(chosen)
            for one in chosen:
                del self.elements[one]
        else:
            x = draw(len(chosen), 3, generator=generator)
            stream.replace(torch.tensor(chosen).long(), x)
            for one, row in zip(chosen, x, strict=True):
                self.elements[one] = (self.elements[one][0], row)

    def sets_of(self, some):
        return torch.tensor([(some * 7 + i * i) % self.num_sets for i in range(some % 5)]).long()

    def compare(self, stream):
        """Elements to the bit, outputs to the certificate."""
        x, index, ids = stream.elements()
        found = {i: (s, tuple(row)) for i, s, row in zip(
            ids.tolist(), index.tolist(), x.tolist(), strict=True)}  # fmt: skip
        assert found == {i: (s, tuple(row.tolist())) for i, (s, row) in self.elements.items()}
        assert stream.counts.tolist() == torch.bincount(index, minlength=self.num_sets).tolist()
        rows = list(self.elements.values())
        x = torch.stack([row for _, row in rows]) if rows else draw(0, 3)
        index = torch.tensor([s for s, _ in rows]).long()
        scratch = stream.layer.solve(x, index, dim_size=self.num_sets)
        assert stream.converged.all()
        assert (stream.residual <= TOLERANCE).all()
        distance = (stream.y - scratch.y).norm(dim=-1)
        assert (distance <= stream.error_bound + scratch.error_bound).all()
        # The bound is no empty promise: it is near the tolerance.
        assert (stream.error_bound < 1e4 * TOLERANCE).all()
        assert torch.equal(stream.y[~scratch.occupied], scratch.y[~scratch.occupied])


EDITS = st.tuples(st.sampled_from(["add", "add", "remove", "replace", "read"]), st.integers(0, 99))


@given(st.lists(EDITS, max_size=30), st.integers(0, 2**31))
def test_any_edits_give_what_a_plain_model_gives(edits, seed):
    stream, model = Stream(make_layer(), dim_size=4), Model(4)
    generator = torch.Generator().manual_seed(seed)
    for kind, some in edits:
        if kind == "read":
            model.compare(stream)
        else:
            model.edit(stream, kind, some, generator)
    model.compare(stream)


def test_a_thousand_edits_leave_no_drift():
    layer = make_layer()
    stream, model = Stream(layer, dim_size=20), Model(20)
    generator = torch.Generator().manual_seed(torch.initial_seed())
    kinds = ("add", "add", "replace", "remove")
    choices = torch.randint(0, 1000, (1000, 2), generator=generator).tolist()
    for number, (kind, some) in enumerate(choices):
        model.edit(stream, kinds[kind % 4], some, generator)
        if number % 3 == 0:  # solve, so that the next start is this end
            _ = stream.y
    model.compare(stream)
    check = stream.check()
    assert (check.distance <= check.error_bound).all()
    assert "within the bound=20" in repr(check)


class TestLayouts:
    """The constructor reads what the layer's call reads; ids are in the given order."""

    @pytest.fixture
    def batch(self):
        torch.manual_seed(2)
        return draw(7, 3), torch.tensor([1, 0, 3, 1, 1, 0, 3])

    def expect(self, stream, x, index, dim_size):
        held, of_sets, ids = stream.elements()
        assert sorted(ids.tolist()) == list(range(len(x)))
        assert torch.equal(held, x[ids])
        assert torch.equal(of_sets, index[ids])
        y = stream.layer(x, index, dim_size=dim_size)
        torch.testing.assert_close(stream.y, y, rtol=0, atol=1e-12)

    def test_index(self, batch):
        self.expect(Stream(make_layer(), *batch, dim_size=5), *batch, 5)

    def test_masked_index(self, batch):
        x, index = batch
        mask = torch.tensor([1, 1, 0, 1, 0, 1, 1]).bool()
        stream = Stream(make_layer(), x, index, mask=mask, dim_size=5)
        self.expect(stream, x[mask], index[mask], 5)

    def test_ptr(self, batch):
        x, ptr = batch[0], torch.tensor([0, 2, 2, 7])
        stream = Stream(make_layer(), x, ptr=ptr)
        self.expect(stream, x, torch.tensor([0, 0, 2, 2, 2, 2, 2]), 3)

    def test_padded(self, batch):
        x = batch[0][:6].view(2, 3, 3)
        mask = torch.tensor([[1, 0, 1], [1, 1, 0]]).bool()
        stream = Stream(make_layer(), x, mask=mask)
        self.expect(stream, x[mask], torch.tensor([0, 0, 1, 1]), 2)

    def test_nested(self, batch):
        x = batch[0]
        nested = torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)
        self.expect(Stream(make_layer(), nested), x, torch.tensor([0, 0, 1, 1, 1, 1, 1]), 2)

    def test_one_set(self, batch):
        stream = Stream(make_layer(), batch[0])
        self.expect(stream, batch[0], torch.zeros(7, dtype=torch.long), 1)
        assert stream.add(batch[0][:1]).tolist() == [7]

    def test_sets(self, batch):
        ordered, sets = equipool.layouts.gather_sets(*batch, dim_size=4)
        self.expect(Stream(make_layer(), ordered, sets), ordered, sets.index, 4)


class TestWhatIsSolved:
    def test_only_touched_sets(self):
        stream = make_stream()
        before, steps = stream.y, stream.steps
        _, index, ids = stream.elements()
        touched = {1, 4, int(index[ids == 0])}
        stream.add(draw(2, 3), [1, 4])
        stream.remove(0)
        changed = (stream.y != before).any(-1).nonzero().squeeze(-1)
        assert set(changed.tolist()) == touched
        same = [number for number in range(6) if number not in touched]
        assert torch.equal(stream.steps[same], steps[same])

    def test_no_edit_changes_other_sets_by_a_bit(self):
        stream = make_stream()
        before = stream.y
        copy = before.clone()
        _, index, ids = stream.elements()
        mine = ids[index == 2]
        stream.replace(mine, draw(len(mine), 3))
        _ = stream.y
        stream.remove(mine[:1])
        others = [0, 1, 3, 4, 5]
        assert torch.equal(stream.y[others], before[others])
        assert not torch.equal(stream.y[2], before[2])
        assert torch.equal(before, copy)  # what was read before stays as it was

    def test_a_read_after_many_edits_is_one_solve(self, monkeypatch):
        stream, searches = make_stream(), []
        search = EquilibriumAggregation.search
        monkeypatch.setattr(
            EquilibriumAggregation,
            "search",
            lambda self, x, *rest, **named: (
                searches.append(len(x)) or search(self, x, *rest, **named)
            ),
        )
        for _ in range(10):
            stream.add(draw(1, 3), 3)
        assert searches == []
        _ = stream.y, stream.residual, stream.converged, stream.error_bound, stream.steps
        assert len(searches) == 1
        stream.remove(40)
        _ = stream.y
        assert searches[1:] == [int(stream.counts[3])]

    def test_a_warm_start_takes_fewer_steps(self):
        layer = make_layer(steps=ToTolerance(1e-3, max_steps=1000))
        stream = Stream(layer, draw(2000, 3))
        from_scratch = int(stream.steps)
        stream.replace(7, draw(1, 3))
        assert int(stream.steps) <= from_scratch / 5
        assert int(stream.check().steps) >= from_scratch / 2

    def test_the_order_of_edits_does_not_matter(self):
        x, index = draw(8, 3), torch.tensor([0, 1, 0, 1, 0, 0, 1, 1])
        one, two = (make_stream(3, 20) for _ in range(2))
        one.remove([3, 5])
        one.add(x, index)
        order = torch.randperm(8)
        for number in order.tolist():
            two.add(x[number : number + 1], index[number])
            _ = two.y
        two.remove(5)
        _ = two.y
        two.remove(3)
        distance = (one.y - two.y).norm(dim=-1)
        assert (distance <= one.error_bound + two.error_bound).all()


class TestUnlearning:
    """Nothing that exceeds the tolerance is left of a removed element."""

    SECRET = 1234.5678

    def leaves_of(self, value, found=None):
        """All tensors that an object reaches."""
        found = {} if found is None else found
        if id(value) in found or isinstance(value, torch.nn.Module):
            return found
        if isinstance(value, torch.Tensor):
            found[id(value)] = value
        elif isinstance(value, dict | tuple | list):
            for one in value.values() if isinstance(value, dict) else value:
                self.leaves_of(one, found)
        elif type(value).__module__.startswith("equipool.streaming"):
            self.leaves_of(vars(value), found)
        return found

    def holds_secret(self, stream):
        tensors = [tensor for tensor in self.leaves_of(stream).values() if tensor.numel()]
        assert any(tensor is stream._store.x for tensor in tensors)  # the search finds something
        return any(bool((tensor == self.SECRET).any()) for tensor in tensors)

    def secret(self, count=1):
        return torch.full((count, 3), self.SECRET, dtype=torch.float64)

    @pytest.mark.parametrize("before", [0, 3, 60], ids=["alone", "few", "many"])
    @pytest.mark.parametrize("grow", [0, 200], ids=["in place", "moved"])
    def test_memory_holds_no_features(self, before, grow):
        stream = Stream(make_layer(), dim_size=3)
        stream.add(draw(before, 3), 1)
        first = stream._store.x
        ids = stream.add(self.secret(2), [1, 1])
        places = [first, stream._store.x]
        assert self.holds_secret(stream)
        stream.add(draw(grow, 3), torch.arange(grow) % 3)
        places.append(stream._store.x)
        stream.remove(ids)
        places.append(stream._store.x)
        assert not self.holds_secret(stream)
        assert not any(bool((place == self.SECRET).any()) for place in places)

    def test_a_replaced_element_is_gone(self):
        stream = make_stream()
        ids = stream.add(self.secret(), 0)
        stream.replace(ids, draw(1, 3))
        assert not self.holds_secret(stream)

    def test_the_file_holds_no_features(self, tmp_path):
        stream, raw = make_stream(), self.secret().numpy().tobytes()
        path = tmp_path / "stream.safetensors"
        ids = stream.add(self.secret(), 2)
        stream.save(path)
        assert raw in path.read_bytes()
        stream.remove(ids)
        stream.save(path)
        assert raw not in path.read_bytes()
        assert [one.name for one in tmp_path.iterdir()] == [path.name]

    def test_the_output_is_that_of_a_set_that_never_had_it(self):
        never, had = make_stream(), make_stream()
        far = had.layer.steps.tolerance * 1e4
        ids = had.add(5 + draw(3, 3), [0, 1, 0])
        assert ((never.y - had.y).norm(dim=-1)[:2] > far).all()
        had.remove(ids)
        distance = (never.y - had.y).norm(dim=-1)
        assert (distance <= never.error_bound + had.error_bound).all()
        assert (never.error_bound + had.error_bound < far).all()


class TestEmptyAndNotFinite:
    def test_an_emptied_set_is_at_the_start(self):
        stream = make_stream(2, 5)
        assert not torch.equal(stream.y[0], stream.y[1])
        stream.remove(torch.arange(5))
        assert torch.equal(stream.y, torch.full((2, 4), 0.25, dtype=torch.float64))
        assert (stream.error_bound == 0).all()
        stream.add(draw(1, 3), 1)
        assert (stream.y[1] != 0.25).all()

    def test_a_set_that_is_not_finite_recovers(self):
        stream = make_stream()
        clean = stream.y
        bad = draw(2, 3)
        bad[0, 1], bad[1, 2] = torch.nan, torch.inf
        ids = stream.add(bad, [2, 0])
        assert stream.y[[0, 2]].isnan().all()
        assert torch.equal(stream.y[[1, 3, 4, 5]], clean[[1, 3, 4, 5]])
        assert stream.converged.tolist() == [False, True, False, True, True, True]
        assert stream.check().distance.isnan().tolist() == [True, False, True] + 3 * [False]
        stream.remove(ids[0])
        stream.replace(ids[1], bad[1:].nan_to_num(posinf=0.0))
        assert stream.converged.all()
        check = stream.check()
        assert (check.distance <= check.error_bound).all()
        torch.testing.assert_close(stream.y[2], clean[2], rtol=0, atol=1e-12)

    def test_a_layer_that_checks_refuses_it(self):
        stream = make_stream(layer=make_layer(check_finite=True))
        with pytest.raises(ValueError, match="not finite"):
            stream.add(torch.full((1, 3), torch.nan, dtype=torch.float64), 0)
        assert int(stream.counts.sum()) == 40

    def test_no_elements_and_no_edits(self):
        stream = make_stream()
        before = stream.y
        assert stream.add(draw(0, 3), []).shape == (0,)
        stream.remove([])
        stream.replace(torch.zeros(0, dtype=torch.long), draw(0, 3))
        assert torch.equal(stream.y, before)
        assert Stream(make_layer(), dim_size=0).y.shape == (0, 4)


class TestSaving:
    def test_what_is_loaded_is_what_was_saved(self, tmp_path):
        stream = make_stream()
        stream.remove([3, 9, 11])
        ids = stream.add(draw(2, 3), [5, 0])
        stream.save(tmp_path / "s.safetensors")
        found = Stream.load(make_layer(), tmp_path / "s.safetensors")
        assert repr(found) == "Stream(sets=6, elements=39, to solve=0)"
        for name in ("y", "residual", "converged", "error_bound", "steps", "counts"):
            assert torch.equal(getattr(found, name), getattr(stream, name))
        for one, other in zip(found.elements(), stream.elements(), strict=True):
            assert torch.equal(one, other)
        with pytest.raises(KeyError):  # an id that was removed stays unknown
            found.remove(3)
        for each in (stream, found):
            each.remove(ids[:1])
        new = found.add(draw(5, 3), 1)
        assert not {3, 9, 11, *ids.tolist()} & set(new.tolist())
        found.remove(new)
        assert (found.y - stream.y).norm(dim=-1).le(found.error_bound + stream.error_bound).all()

    def test_another_layer_solves_again(self, tmp_path):
        stream = make_stream()
        stream.save(tmp_path / "s.safetensors")
        layer = make_layer()
        with torch.no_grad():
            layer.potential.slope.bias.add_(1)
        found = Stream.load(layer, tmp_path / "s.safetensors")
        x, index, _ = stream.elements()
        torch.testing.assert_close(found.y, layer(x, index, dim_size=6), rtol=0, atol=1e-12)
        tighter = Stream.load(
            make_layer(), tmp_path / "s.safetensors", steps=ToTolerance(1e-9, 9999)
        )
        assert (tighter.residual <= 1e-9).all()

    def test_a_file_that_cannot_be_written_leaves_nothing(self, tmp_path):
        (tmp_path / "folder").mkdir()
        with pytest.raises(OSError, match="folder"):
            make_stream().save(tmp_path / "folder")
        assert [one.name for one in tmp_path.iterdir()] == ["folder"]

    def test_bad_files_are_named(self, tmp_path):
        path = tmp_path / "s.safetensors"
        path.write_bytes(b"nothing")
        with pytest.raises(ValueError, match="is not a safetensors file"):
            Stream.load(make_layer(), path)
        save_file({"x": draw(1, 3)}, path)
        with pytest.raises(ValueError, match="is not a stream"):
            Stream.load(make_layer(), path)
        make_stream().save(path)
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        tensors = load_file(path)
        save_file(tensors | {"counts": tensors["counts"] + 1}, path, metadata)
        with pytest.raises(ValueError, match="is damaged"):
            Stream.load(make_layer(), path)
        del tensors["uses"]
        save_file(tensors, path, metadata)
        with pytest.raises(ValueError, match="lacks"):
            Stream.load(make_layer(), path)
        make_stream().save(path)
        with pytest.raises(TypeError, match="dtype"):
            Stream.load(make_layer().float(), path)
        with pytest.raises(ValueError, match="3 channels"):
            Stream.load(closed_form.mean(4), path, steps=TO_TOLERANCE)

    def test_what_to_install_is_said(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "safetensors", None)
        with pytest.raises(ModuleNotFoundError, match=r"equipool\[train\]"):
            make_stream().save(tmp_path / "s.safetensors")


class TestChangedLayers:
    def expect_current(self, stream):
        x, index, _ = stream.elements()
        y = stream.layer(x, index, dim_size=stream.num_sets)
        torch.testing.assert_close(stream.y, y, rtol=0, atol=1e-12)

    def test_a_training_step_is_noticed(self):
        stream = make_stream()
        before = stream.y
        optimizer = torch.optim.SGD(stream.layer.parameters(), lr=0.1)
        x, index, _ = stream.elements()
        stream.layer(x, index).square().sum().backward()
        optimizer.step()
        assert not torch.equal(stream.y, before)
        self.expect_current(stream)

    def test_loaded_weights_are_noticed(self):
        stream = make_stream()
        before = stream.y
        state = {name: 1.1 * value for name, value in stream.layer.state_dict().items()}
        stream.layer.load_state_dict(state)
        assert not torch.equal(stream.y, before)
        self.expect_current(stream)

    @pytest.mark.parametrize(
        ("name", "value"), [("scaling", "mean"), ("steps", ToTolerance(1e-9, max_steps=9999))]
    )
    def test_settings_are_noticed(self, name, value):
        stream = make_stream()
        before = stream.y
        setattr(stream.layer, name, value)
        assert not torch.equal(stream.y, before)
        self.expect_current(stream)

    def test_refresh_sees_the_rest(self):
        stream = make_stream()
        before = stream.y
        stream.layer.potential.slope.bias.data.add_(1)
        assert torch.equal(stream.y, before)
        stream.refresh()
        self.expect_current(stream)
        assert not torch.equal(stream.y, before)


class TestFarAway:
    class Steep(torch.nn.Module):
        """Far from the elements, steps of a bounded length take long to come back."""

        def forward(self, x, y):
            return (1 + (y - x).square()).sqrt().sum(-1)

    def test_an_element_that_took_the_output_far_away_leaves_nothing(self):
        layer = EquilibriumAggregation(
            1, 1, potential=self.Steep(), scaling="mean", regularizer=equipool.NoRegularizer(),
            solver=equipool.GradientDescent(0.5), steps=ToTolerance(1e-3, 60),
        )  # fmt: skip
        stream = Stream(layer, torch.tensor([[0.2], [0.4]]))
        clean = stream.y
        assert stream.converged.all()
        far = stream.add(torch.full((3, 1), 1e4), 0)
        for _ in range(20):  # each read takes the output further
            stream.replace(far, torch.full((3, 1), 1e4))
            away = stream.y
        assert away.item() > 100
        assert not stream.converged.any()
        stream.remove(far)
        assert stream.converged.all()
        assert (stream.y - clean).abs().item() < 0.01


class TestSeveralMinima:
    class DoubleWell(torch.nn.Module):
        """Minima at -1 and 1; the elements tilt it."""

        def forward(self, x, y):
            return ((y.square() - 1).square() + x * y).sum(-1)

    def test_check_finds_the_other_minimum(self):
        layer = EquilibriumAggregation(
            1, 1, potential=self.DoubleWell(), regularizer=equipool.NoRegularizer(),
            scaling="mean", solver=equipool.GradientDescent(0.05), steps=ToTolerance(1e-5, 2000),
        )  # fmt: skip
        stream = Stream(layer, torch.tensor([[-0.5], [-0.5]]))
        assert stream.y.item() > 0.9
        stream.replace([0, 1], torch.tensor([[0.3], [0.3]]))
        assert stream.y.item() > 0.9
        check = stream.check()
        assert check.distance.item() > 1.8
        assert check.energy.item() > 0  # the solve from scratch found a lower one
        assert check.error_bound is None
        assert stream.error_bound is None
        stream.refresh()
        assert stream.y.item() < -0.9
        assert stream.check().distance.item() == 0


class WithDropout(torch.nn.Module):
    def __init__(self, kind=torch.nn.Dropout):
        super().__init__()
        self.dropout = kind(0.5)

    def forward(self, x, y):
        return (self.dropout(x[:, :1]) - y).square().sum(-1)


class TestBadInput:
    def test_ids(self):
        stream = make_stream()
        stream.remove(torch.tensor(7, dtype=torch.int32))
        for ids in (7, [1, 7], -1, 40, 2**40, 2**63 - 1):
            with pytest.raises(KeyError, match="expected ids of elements in the stream"):
                stream.remove(ids)
            with pytest.raises(KeyError):
                stream.replace(ids, draw(len(ids) if isinstance(ids, list) else 1, 3))
        with pytest.raises(KeyError, match="7, 41, 42 and 1 others"):
            stream.remove([1, 7, 41, 42, 43])
        with pytest.raises(ValueError, match="2 more than once"):
            stream.remove([1, 2, 2])
        with pytest.raises(ValueError, match="2 more than once"):
            stream.replace([1, 2, 2], draw(3, 3))
        with pytest.raises(TypeError, match=r"ids has dtype torch.float32 and shape \[1\]"):
            stream.remove(torch.ones(1))
        assert int(stream.counts.sum()) == 39

    def test_elements(self):
        stream = make_stream()
        for edit in (lambda x: stream.add(x, 0), lambda x: stream.replace(0, x)):
            with pytest.raises(ValueError, match=r"x has shape \[1, 2\], expected \[n, 3\]"):
                edit(draw(1, 2))
            with pytest.raises(ValueError, match=r"x has shape \[3\], expected \[n, 3\]"):
                edit(draw(3))
            with pytest.raises(TypeError, match=r"float32, expected torch\.float64"):
                edit(torch.ones(1, 3))
            with pytest.raises(ValueError, match="x is on meta, expected cpu"):
                edit(draw(1, 3).to("meta"))
            with pytest.raises(TypeError, match="x is a list"):
                edit([[1.0, 2.0, 3.0]])
        with pytest.raises(ValueError, match="x has 2 elements, expected 1"):
            stream.replace(0, draw(2, 3))

    def test_sets(self):
        stream = make_stream()
        with pytest.raises(ValueError, match="index is None"):
            stream.add(draw(1, 3))
        with pytest.raises(ValueError, match="index has the value 6"):
            stream.add(draw(2, 3), [0, 6])
        with pytest.raises(ValueError, match="negative value -1"):
            stream.add(draw(1, 3), -1)
        with pytest.raises(ValueError, match="index has 3 numbers, expected 2"):
            stream.add(draw(2, 3), [0, 1, 2])
        with pytest.raises(TypeError, match=r"index has dtype torch\.bool"):
            stream.add(draw(1, 3), torch.tensor([True]))

    def test_construction(self):
        layer = make_layer()
        with pytest.raises(ValueError, match="x and dim_size are None"):
            Stream(layer)
        with pytest.raises(ValueError, match="index given beside dim_size without x"):
            Stream(layer, index=torch.zeros(2).long(), dim_size=2)
        with pytest.raises(TypeError, match="x is a list"):
            Stream(layer, [[1.0, 2.0, 3.0]])
        with pytest.raises(TypeError, match=r"x has dtype torch\.float32"):
            Stream(layer, torch.ones(2, 3))
        with pytest.raises(ValueError, match="x has 2 channels"):
            Stream(layer, draw(2, 2))

    @pytest.mark.parametrize("steps", [10, equipool.RandomSteps(5, 10)])
    def test_steps_without_a_tolerance(self, steps):
        layer = make_layer(steps=steps)
        with pytest.raises(ValueError, match=r"pass steps=ToTolerance"):
            Stream(layer, dim_size=1)
        stream = Stream(layer, draw(5, 3), steps=TO_TOLERANCE)
        assert stream.converged.all()
        assert layer.num_steps == 10

    @pytest.mark.parametrize(
        "change",
        [
            {"potential": ResNetPotential(3, 4, dropout=0.5), "solver": None},
            {"potential": WithDropout(), "solver": None},
            {"potential": WithDropout(torch.nn.Dropout1d), "solver": None},
            {"start": NormalStart(4)},
        ],
        ids=["dropout", "a module's dropout", "channels", "start"],
    )
    def test_random_layers(self, change):
        layer = make_layer(**change).train()
        stream = Stream(layer, dim_size=2)
        with pytest.raises(RuntimeError, match=r"call layer.eval\(\)"):
            _ = stream.y
        layer.eval()
        assert (stream.y == layer(draw(0, 3), torch.zeros(0).long(), dim_size=2)).all()


class TestModes:
    def test_inference_mode_changes_nothing(self):
        layer = make_layer(potential=torch.nn.Module())
        layer.potential.forward = lambda x, y: (x[:, :1] - y).square().sum(-1)
        layer.solver = equipool.GradientDescent(0.01)
        x = draw(5, 3)
        with torch.inference_mode():
            stream = Stream(layer, x, torch.tensor([0, 0, 1, 1, 1]))
            ids = stream.add(x[:1].clone(), 0)
            y = stream.y
        assert stream.converged.all()
        stream.remove(ids)
        stream.add(x[:1], 1)
        assert not y.is_inference()
        check = stream.check()
        assert (check.distance < 1e-4).all()
        assert not torch.equal(stream.y, y)

    def test_no_gradients_are_recorded(self):
        stream = make_stream()
        stream.add(draw(1, 3).requires_grad_(), 0)
        assert not stream.y.requires_grad
        assert not stream.elements()[0].requires_grad

    def test_autocast_has_no_effect(self):
        layer = make_layer().float()
        layer.steps = ToTolerance(1e-3, 1000)
        x = torch.randn(9, 3)
        stream, plain = Stream(layer, x), Stream(layer, x)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(stream.y, plain.y)
            assert stream.error_bound is not None

    def test_short_elements_keep_a_long_output(self):
        layer = closed_form.mean(2)
        x = torch.tensor([[1.0, 2.0], [2.0, 4.0]]).bfloat16()
        stream = Stream(layer, x, steps=ToTolerance(1e-3))
        assert stream.y.dtype == torch.bfloat16
        assert stream.y.tolist() == [[1.5, 3.0]]
        stream.remove(1)
        assert stream.y.tolist() == [[1.0, 2.0]]


class TestStorage:
    """What an edit costs does not depend on the number of elements."""

    def test_growth_is_amortised(self):
        stream = Stream(make_layer(), dim_size=50)
        places = set()
        for _ in range(60):
            stream.add(draw(50, 3), torch.arange(50))
            places.add(stream._store.x.data_ptr())
        assert stream._store.x.shape[0] <= 8 * 3000
        assert len(places) <= 20

    def test_it_shrinks(self):
        stream = Stream(make_layer(), draw(4000, 3))
        stream.remove(torch.arange(3990))
        assert stream._store.x.shape[0] <= 8 * 14
        assert int(stream.counts) == 10
        assert stream.converged.all()

    def test_ids_stay_few_in_memory(self):
        stream = Stream(make_layer(), draw(10, 3))
        for _ in range(50):
            stream.remove(stream.add(draw(20, 3)))
        assert stream._store.entries.uses.shape[0] <= 64
        assert int(stream.counts) == 10


class TestPage:
    page = "docs/streams.md"

    def test_examples(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run_page(self.page)

    def test_numbers(self):
        """The tables are those of the records."""
        text = (ROOT / self.page).read_text()
        record = json.loads((ROOT / "benchmarks" / "records" / "cpu-streaming.json").read_text())
        for row in record["replacements"]:
            ((_, _, warm, scratch, ratio),) = table_rows(
                text, row["layer"], f"{row['tolerance']:.0e}"
            )
            assert warm == f"{row['warm_steps']['median']:g}"
            assert scratch == f"{row['scratch_steps']['median']:g}"
            assert ratio == f"{row['ratio']['median']:.2g}"
        for row in record["many_sets"]:
            ((_, *times),) = table_rows(text, f"{row['sets']:,}")
            found = [row[name]["median"] for name in ("edit_ms", "edit_and_read_ms", "scratch_ms")]
            assert times == [f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.2g} ms" for ms in found]
        for row in record["drifts"]:
            distances = [f"{row[name]:.1e}" for name in ("median_distance", "largest_distance")]
            assert table_rows(
                text, row["layer"], *distances, f"{row['elsewhere']} of {row['sets']}"
            )
            if row["largest_over_bound"] is not None:
                assert f"{row['largest_over_bound']:.2g} of its bound" in text
