import copy
from pathlib import Path

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from equipool.bench import stability as bench
from equipool.bench.stability_networks import StackedRegressors
from equipool.bench.stability_options import (
    HARD,
    OPTIONS,
    TRIALS,
    Setting,
    build_network,
)
from equipool.bench.stability_solvers import BoundedScalar
from equipool.bench.stability_training import (
    Recipe,
    Sizes,
    batches,
    clip_each_seed,
    count_not_finite,
    count_spikes,
    train,
)

ROOT = Path(__file__).parents[2]
SIZES = Sizes(set_size=5, batch_size=4, evaluation_sets=8)
PLAIN = OPTIONS[0]
each_option = pytest.mark.parametrize("option", OPTIONS, ids=[option.name for option in OPTIONS])


def build(option, seeds=(0, 1, 2), setting=HARD):
    return [build_network(option, setting, seed) for seed in seeds]


def stack(networks, option=PLAIN):
    """Of copies, since the stack takes the first network's solver over."""
    return StackedRegressors(
        copy.deepcopy(networks), SIZES.batch_size, max_y_weight=option.max_y_weight
    )


def shorten_y_weights(network, longest):
    """What the option does, on one network's own weights."""
    first, skip = network.layer.potential.linears[0].weight, network.layer.potential.skips[0].weight
    for component in range(1, first.shape[1]):
        length = (first[:, component].square().sum() + skip[:, component].square().sum()).sqrt()
        factor = min(1.0, longest / length.item())
        with torch.no_grad():
            first[:, component] *= factor
            skip[:, component] *= factor


class TestStackedNetworks:
    @each_option
    def test_outputs_are_those_of_the_networks(self, option):
        networks = [network.double() for network in build(option)]
        x = torch.rand(3, SIZES.batch_size, SIZES.set_size, 1, dtype=torch.float64)
        found = stack(networks, option).double()(x)
        if option.max_y_weight is not None:
            for network in networks:
                shorten_y_weights(network, option.max_y_weight)
        expected = torch.stack([net(sets) for net, sets in zip(networks, x, strict=True)])
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("outputs", [1, 8])
    def test_gradients_are_those_of_the_networks(self, outputs):
        networks = [n.double() for n in build(PLAIN, setting=Setting("", "", 1.0, outputs))]
        stacked = stack(networks).double()
        x = torch.rand(3, SIZES.batch_size, SIZES.set_size, 1, dtype=torch.float64)
        stacked(x).square().sum().backward()
        for network, sets in zip(networks, x, strict=True):
            network(sets).square().sum().backward()
        for seed, network in enumerate(networks):
            potential, head = dict(network.layer.potential.named_parameters()), network.head
            for own, values in ((stacked.potentials, potential),
                                (stacked.heads, dict(head.named_parameters()))):  # fmt: skip
                for name, parameter in zip(own.names, own.values, strict=True):
                    torch.testing.assert_close(parameter.grad[seed], values[name].grad)
            solver = network.layer.solver
            for name in ("raw_learning_rate", "raw_momentum"):
                found = stacked.solver.get_submodule(name).scalar.raw.grad[seed]
                torch.testing.assert_close(found, getattr(solver, name).raw.grad)
            found = stacked.regularizer.raw_weight.scalar.raw.grad[seed]
            torch.testing.assert_close(found, network.layer.regularizer.raw_weight.raw.grad)

    def test_every_parameter_has_a_row_for_each_seed(self):
        learned_start = next(option for option in OPTIONS if "start at 1" in option.name)
        for option in (PLAIN, learned_start):
            shapes = [p.shape for p in stack(build(option)).parameters()]
            assert {shape[0] for shape in shapes} == {3}
        assert len(shapes) == sum(1 for _ in build(learned_start)[0].parameters())


class TestTraining:
    RECIPE = Recipe(max_gradient=0.5, warm_up=0.5, ramp=0.5, scalar_rate=0.1)

    def test_is_that_of_each_network_by_itself(self):
        networks = build(PLAIN)
        drawn = batches(stack(networks), SIZES)
        x, target = map(torch.stack, zip(*(next(drawn) for _ in range(6)), strict=True))
        found = train(stack(networks), SIZES, self.RECIPE, 1e-2, 6)
        for seed, network in enumerate(networks):
            expected = train_alone(network, x[:, seed], target[:, seed])
            torch.testing.assert_close(found[:, seed], expected, rtol=1e-3, atol=1e-6)

    def test_a_seed_is_the_same_whatever_others_there_are(self):
        one, three = (train(stack(build(PLAIN, seeds)), SIZES, Recipe(), 1e-2, 4)
                      for seeds in ((0,), (0, 1, 2)))  # fmt: skip
        torch.testing.assert_close(one[:, 0], three[:, 0], rtol=1e-3, atol=1e-6)

    @pytest.mark.parametrize("recipe", [Recipe(), Recipe(max_gradient=1.0)])
    def test_a_lost_seed_takes_no_other_with_it(self, recipe):
        networks = stack(build(PLAIN))
        with torch.no_grad():
            networks.potentials.values[0][1] = torch.nan
        losses = train(networks, SIZES, recipe, 1e-2, 3)
        assert losses.isfinite().all(0).tolist() == [True, False, True]
        assert bench.evaluate(networks, SIZES).isfinite().tolist() == [True, False, True]

    def test_inner_steps_rise_and_stay(self):
        networks, seen = stack(build(PLAIN)), []
        train(
            networks, SIZES, Recipe(ramp=0.5), 1e-2, 20, lambda _: seen.append(networks.num_steps)
        )
        assert seen[:3] == [1, 1, 1]
        assert seen == sorted(seen)
        assert set(seen) == {1, 2, 3, 4, 5}
        assert seen[10:] == [5] * 10

    def test_a_ramp_that_ends_early_leaves_the_network_as_it_was(self):
        networks = stack(build(PLAIN))
        train(networks, SIZES, Recipe(ramp=1.0), 1e-2, 2)
        assert networks.num_steps == 5

    def test_only_gradients_that_are_too_long_are_clipped(self):
        parameters = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(2))]
        parameters[0].grad = torch.tensor([[3.0, 0.0, 0.0], [0.3, 0.0, 0.0]])
        parameters[1].grad = torch.tensor([4.0, 0.4])
        clip_each_seed(parameters, 1.0)
        torch.testing.assert_close(parameters[0].grad[:, 0], torch.tensor([0.6, 0.3]))
        torch.testing.assert_close(parameters[1].grad, torch.tensor([0.8, 0.4]))


def train_alone(network, x, target):
    """`TestTraining.RECIPE` once more, with torch's own parts, for six steps of one network."""
    solver = list(network.layer.solver.parameters())
    others = [p for p in network.parameters() if all(p is not scalar for scalar in solver)]
    optimizer = torch.optim.Adam([{"params": others}, {"params": solver}])
    losses = []
    for step, inner_steps in enumerate((1, 2, 3, 5, 5, 5)):
        rate = 1e-2 * (1 / 3, 2 / 3, 1, 1, 1, 1)[step]
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = rate, 0.1 * rate
        network.layer.num_steps = inner_steps
        loss = (network(x[step]) - target[step]).square().mean()
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
    return torch.stack(losses)


class TestCounts:
    def test_spikes_are_ten_times_the_usual_loss(self):
        losses = torch.ones(300, 2)
        losses[150] = torch.tensor([10.5, 9.5])
        assert count_spikes(losses).tolist() == [1, 0]

    def test_the_usual_loss_is_that_of_the_last_hundred_steps(self):
        losses = torch.cat([torch.ones(120, 1), torch.full((120, 1), 0.01)])
        losses[[165, 235]] = 0.2  # ten times what is usual at the second alone
        assert count_spikes(losses).tolist() == [1]

    def test_the_first_steps_are_no_spikes(self):
        losses = torch.ones(30, 1)
        losses[9], losses[10] = 100.0, 100.0
        assert count_spikes(losses).tolist() == [1]

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_what_is_not_finite_is_counted_apart(self, value):
        losses = torch.ones(50, 1)
        losses[15:40] = value
        losses[45] = 11.0
        assert count_spikes(losses).tolist() == [1]
        assert count_not_finite(losses).tolist() == [25]


class TestBoundedScalar:
    def test_starts_where_it_is_told_to(self):
        for origin in (0.001, 0.02, 0.125, 0.2):
            assert BoundedScalar("", origin, 0.25)().item() == torch.tensor(origin).item()

    def test_stays_below_its_bound(self):
        scalar = BoundedScalar("", 0.125, 0.25)
        for raw, expected in ((-50.0, 0.0), (50.0, 0.25)):
            nn.init.constant_(scalar.raw, raw)
            assert 0 <= scalar().item() <= 0.25
            assert scalar().item() == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize("origin", [0.0, 0.25, 0.3])
    def test_cannot_start_at_its_bounds(self, origin):
        with pytest.raises(ValueError, match=f"rate is {origin}, expected more than 0 and less"):
            BoundedScalar("rate", origin, 0.25)


class TestCommand:
    @pytest.fixture
    def call(self):
        app = typer.Typer()
        app.command()(bench.stability)
        arguments = ("--quick", "--commit", "abc", "--option", "plain recipe")
        return lambda *more: CliRunner().invoke(app, [*arguments, *map(str, more)])

    def test_measures_prints_and_writes(self, call, tmp_path):
        file = tmp_path / "record.json"
        done = call("--out", file)
        assert done.exit_code == 0, done.output
        assert "one output: Adam at 1e-2" in done.output
        record = bench.read_stability(file)
        assert [row.setting for row in record.rows] == ["hard", "usual", "one output"]
        assert {len(row.errors) for row in record.rows} == {2}
        assert record.command == 'equipool bench stability --quick --option "plain recipe"'
        assert str(tmp_path) not in file.read_text()

    def test_goes_on_where_it_was_cut_off(self, call, tmp_path, monkeypatch):
        file, measured = tmp_path / "record.json", []
        assert call("--out", file, "--setting", "usual").exit_code == 0
        monkeypatch.setattr(bench, "measure", lambda option, setting, plan, report: (
            measured.append(setting.name) or outcome(setting.name, option.name)))  # fmt: skip
        assert call("--out", file).exit_code == 0
        assert measured == ["hard", "one output"]
        assert len(bench.read_stability(file).rows) == 3

    def test_does_not_go_on_with_another_run(self, call, tmp_path):
        file = tmp_path / "record.json"
        assert call("--out", file, "--setting", "usual").exit_code == 0
        file.write_text(file.read_text().replace('"seeds": 2', '"seeds": 3'))
        done = call("--out", file)
        assert done.exit_code != 0
        assert "has seeds 3, expected 2" in str(done.exception)

    @pytest.mark.parametrize("argument", ["--option", "--setting"])
    def test_an_unknown_name_is_refused_with_those_that_exist(self, call, argument):
        done = call(argument, "nothing")
        assert done.exit_code == 2
        assert "expected one of" in " ".join(done.output.split())


def outcome(setting="hard", option="plain recipe", errors=(1e-3, None, 2e-3, 3e-3, 5e-3)):
    return bench.Outcome(
        setting, option, [0, 2, 0, 1, 0], [0, 7, 0, 0, 0], [0.1] * 5, list(errors), [0.125] * 5,
        [0.9] * 5,
    )  # fmt: skip


class TestReport:
    def test_a_lost_seed_is_worse_than_any(self):
        assert bench.quartiles([3.0, None, 1.0, 2.0, 4.0]) == (2.0, 3.0, 4.0)
        assert bench.quartiles([3.0, None, None]) == (3.0, float("inf"), float("inf"))

    def test_a_row_says_what_was_counted(self):
        record = bench.StabilityRecord(
            "", "", "", {}, {}, 5, 9, SIZES, [outcome(), outcome("usual")]
        )
        lines = bench.markdown(record, "hard").splitlines()
        assert len(lines) == 3
        assert lines[2] == (
            "| plain recipe | 3 | 2 | 7 | 1.0e-01 | 3.0e-03 | 2.0e-03 to 5.0e-03 | 0.125 |"
        )

    def test_a_record_is_read_as_it_was_written(self, tmp_path):
        rows = [outcome(), outcome("usual")]
        record = bench.StabilityRecord(
            "c", "d", "e", {"torch": "1"}, {"cpu": "x"}, 5, 9, SIZES, rows
        )
        record.write(tmp_path / "record.json")
        assert bench.read_stability(tmp_path / "record.json") == record


class TestPage:
    RECORD = bench.read_stability(ROOT / "benchmarks" / "records" / "cpu-stability.json")

    def test_record_is_of_every_trial(self):
        assert [(row.option, row.setting) for row in self.RECORD.rows] == [
            trial.names() for trial in TRIALS
        ]
        assert self.RECORD.seeds == 20

    @pytest.mark.parametrize("setting", dict.fromkeys(trial.setting.name for trial in TRIALS))
    def test_tables_are_those_of_the_record(self, setting):
        page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
        assert bench.markdown(self.RECORD, setting) in page
