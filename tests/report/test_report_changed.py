"""Groups that are named after what was changed in them."""

from dataclasses import replace

from records import record, write_records

from equipool.report import read_runs
from equipool.report.changed import changed_groups


def one(aggregation="equilibrium", seed=0, error=1.0, training=(), **fields):
    made = record([error], aggregation, seed=seed)
    config = made.config
    config = config | {
        "fields": config["fields"] | fields,
        "training": config["training"] | dict(training),
    }
    return replace(made, config=config)


def found(tmp_path, *records):
    return changed_groups(read_runs(write_records(tmp_path, *records)))


def test_what_most_have_in_common_is_usual(tmp_path):
    groups = found(
        tmp_path,
        one(inner_momentum=0.9, error=0.1),
        one(inner_momentum=0.5, seed=0),
        one(inner_momentum=0.5, seed=1),
        one(inner_momentum=0.5, inner_max_step=0.5),
        one(inner_momentum=0.5, inner_curvature_safe=True, training={"ema_decay": None}),
        one(inner_momentum=0.5, training={"ema_decay": 0.9}),
    )
    assert groups[0].method == "equilibrium"
    assert groups[0].group is groups[0].usual
    assert [run.config["fields"]["seed"] for run in groups[0].group.runs] == [0, 1]
    assert {changed.method for changed in groups[1:]} == {
        "equilibrium, solver momentum 0.9",
        "equilibrium, solver max step 0.5",
        "equilibrium, solver curvature safe on",
        "equilibrium, ema decay 0.9",
    }
    by_momentum = next(changed for changed in groups if "momentum" in changed.method)
    assert by_momentum.settings == {"solver.momentum": 0.9}


def test_methods_are_compared_with_their_own_kind(tmp_path):
    groups = found(
        tmp_path,
        one(inner_momentum=0.5),
        one("sum"),
        one("sum", training={"clip_norm": None}),
        one("sum", training={"clip_norm": 3.0}),
    )
    names = [changed.method for changed in groups]
    assert names[0] == "equilibrium"
    assert set(names[1:]) == {"sum", "sum, clip norm none", "sum, clip norm 3.0"}


def test_where_a_method_leaves_it_open_the_others_tell(tmp_path):
    groups = found(
        tmp_path,
        one("sum", training={"learning_rate": 0.3}),
        one("sum", training={"learning_rate": 0.1}),
        one(training={"learning_rate": 0.1}),
        one(inner_momentum=0.25, training={"learning_rate": 0.1}),
    )
    assert {changed.method for changed in groups if "sum" in changed.method} == {
        "sum",
        "sum, learning rate 0.3",
    }


def test_a_switch_that_is_off_is_no_zero(tmp_path):
    first, second, third = found(
        tmp_path,
        one(inner_max_step=1.0),
        one(inner_max_step=None),
        one(inner_max_step=1.0, inner_curvature_safe=True),
    )
    assert first.settings == {}
    assert second.settings | third.settings == {
        "solver.max_step": None,
        "solver.curvature_safe": True,
    }
