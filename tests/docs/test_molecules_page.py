"""The tables and figures of the page about molecules."""

from dataclasses import replace

import pytest
from figure_scripts import check_page, load_script, needs_page, use_folder

from run_records import TRAINING_MOLECULES, on_molecules, rows, write_folder, written

script = load_script("molecules")


@pytest.fixture
def cost(tmp_path):
    """An epoch of the sum in a GCN takes 5 seconds, after 100 to begin with."""
    begin = on_molecules([0.5, 0.5], [0.5, 0.5], convolution="gcn", seed=7, seconds=0.5)
    for entry in begin.curve:
        entry["training_seconds"] += 100
    return script.Cost({"molhiv": TRAINING_MOLECULES}, written(tmp_path / "speed", begin))


@pytest.fixture
def runs(tmp_path):
    return written(
        tmp_path / "runs",
        on_molecules([0.7, 0.8, 0.6], [0.6, 0.7, 0.9], convolution="gcn", seed=0),
        on_molecules([0.7, 0.6, 0.9], [0.6, 0.9, 0.8], convolution="gcn", seed=1),
        on_molecules([0.9, 0.8], [0.65, 0.99], "attention", convolution="gcn"),
        on_molecules([0.6, 0.7], [0.6, 0.7], "equilibrium", convolution="gin"),
        on_molecules([0.6, 0.7], [0.6, 0.8], "equilibrium", local_aggregation="equilibrium"),
    )


def test_scores_at_the_best_validation_and_at_the_end(runs, cost):
    table = script.results(runs, cost)
    assert table.rows[0] == (
        "GCN", "sum", "sum", "2", "3",
        "0.8500 ± 0.0707",  # best validation: 0.8 and 0.9
        "0.7500 ± 0.0707",  # test there: 0.7 and 0.8
        "0.8500 ± 0.0707",  # test at the end: 0.9 and 0.8
        "1,234", "5",
    )  # fmt: skip
    assert table.rows[1][:3] == ("GCN", "attention", "sum")
    assert table.rows[1][5:8] == ("0.9000", "0.6500", "0.9900")
    assert table.rows[1][-1] == "-"  # no solo run
    assert [row[:3] for row in table.rows[2:]] == [
        ("GIN", "equilibrium", "equilibrium"),
        ("GIN", "equilibrium", "sum"),
    ]


def test_results_stand_beside_those_of_the_paper(runs, cost):
    tables = script.tables({"results": runs, "toxcast": runs, "qm9": []}, {"steps": []}, cost)
    assert {row[:3]: row[-1] for row in tables["results"].rows} == {
        ("GCN", "sum", "sum"): "0.203",
        ("GCN", "attention", "sum"): "0.229",
        ("GIN", "equilibrium", "sum"): "0.246",
        ("GIN", "equilibrium", "equilibrium"): "-",
    }
    assert len(tables["toxcast"].headings) == len(tables["results"].headings) - 1
    assert list(tables) == ["ran_on", "results", "toxcast"]  # only where there are runs


def test_what_was_tried_is_named_after_the_change_in_each_network(tmp_path, cost):
    runs = written(
        tmp_path / "quick",
        on_molecules([0.5, 0.4], [0.6, 0.9], "equilibrium"),
        on_molecules([0.5, 0.6], [0.9, 0.8], "equilibrium", atom_dropout=0.2),
        on_molecules([0.5, 0.6], [0.9, 0.5], "equilibrium", inner_steps=2),
        on_molecules([0.5], [0.7]),
        on_molecules([0.5], [0.1], "equilibrium", convolution="gcn"),
        on_molecules([0.5], [0.2], "equilibrium", convolution="gcn", seed=1),
        on_molecules([0.5], [0.3], "equilibrium", convolution="gcn", readout_dropout=0.1),
        on_molecules([0.5], [0.9], "equilibrium", convolution="gcn", atom_dropout=0.1),
    )
    table = script.tables({"results": [], "quick": runs}, {}, cost)["quick"]
    assert [(row[0], row[1], row[5]) for row in table.rows] == [
        ("GCN", "equilibrium, atom dropout 0.1", "0.9000"),
        ("GCN", "equilibrium, readout dropout 0.1", "0.3000"),
        ("GCN", "equilibrium", "0.1500 ± 0.0707"),
        ("GIN", "equilibrium, atom dropout 0.2", "0.8000"),
        ("GIN", "sum", "0.7000"),
        ("GIN", "equilibrium", "0.6000"),
        ("GIN", "equilibrium, inner steps 2", "0.5000"),
    ]


@pytest.mark.parametrize(
    ("dataset", "measure", "sign"),
    [("toxcast", "average_precision", 1), ("tox21", "roc_auc", 1), ("qm9", "mae", -1)],
)
def test_other_data_has_its_own_measure(tmp_path, dataset, measure, sign):
    """The score of an error is negative, so that the largest is the best."""
    worse, better = sorted(sign * value for value in (0.25, 0.5))
    runs = written(
        tmp_path / "runs",
        on_molecules([worse, better], [worse, worse], measure=measure, dataset=dataset),
        on_molecules([better], [better], "equilibrium", measure=measure, dataset=dataset),
    )
    table = script.results(runs, script.Cost({dataset: 8}, []))
    assert [row[1] for row in table.rows] == ["equilibrium", "sum"]
    # ten epochs: 20 steps of 4 of the 8 molecules
    assert table.rows[1][4:7] == ("10", f"{sign * better:.4f}", f"{sign * worse:.4f}")
    assert script.WORDS[measure] in table.headings[5]


def test_an_epoch_is_the_training_part(tmp_path, cost):
    whole, part = written(
        tmp_path / "runs", on_molecules([0.5], [0.5]), on_molecules([0.5], [0.5], train_limit=18)
    )
    assert (cost.steps(whole), cost.steps(part)) == (10, 5)
    assert (cost.epochs(whole), cost.epochs(part)) == (1, 2)
    assert cost.epochs(replace(whole, steps=19)) == 1  # as evaluated


def test_the_training_part_is_read_from_the_records(tmp_path):
    written(tmp_path / "molecules" / "more", on_molecules([0.5], [0.5]))
    run = tmp_path / "molecules" / "run"
    write_folder(run, on_molecules([0.5], [0.5], dataset="qm9"), [])
    (run / "examination-last").mkdir()
    (run / "examination-last" / "examination.json").write_text("{}")  # no record
    found = script.training_molecules([tmp_path / "molecules"])
    assert found == {"molhiv": TRAINING_MOLECULES, "qm9": TRAINING_MOLECULES}
    written(tmp_path / "other", on_molecules([0.5], [0.5], training=78))
    with pytest.raises(ValueError, match=r"molhiv has 39 molecules .* and 78 in another"):
        script.training_molecules([tmp_path / "molecules", tmp_path / "other"])


def test_an_ablation_is_in_the_order_of_the_values(tmp_path, cost):
    """A sum has no inner steps."""
    runs = written(
        tmp_path / "steps",
        on_molecules([0.5], [0.6], "equilibrium", convolution="gcn", inner_steps=10),
        on_molecules([0.7], [0.8], "equilibrium", convolution="gcn", inner_steps=2),
        on_molecules([0.9], [0.6], "equilibrium", 1, convolution="gcn", inner_steps=2),
        on_molecules([0.5], [0.55], convolution="gcn"),
    )
    table = script.ablation(runs, "inner_steps", cost)
    assert [(*row[:3], row[4], row[-1]) for row in table.rows] == [
        ("equilibrium", "2", "2", "0.8000 ± 0.1414", "-"),
        ("equilibrium", "10", "1", "0.5000", "-"),
        ("sum", "-", "1", "0.5000", "5"),
    ]
    (single,) = script.ablation(runs[:1], "inner_steps", cost).rows  # others are still to come
    assert single[:3] == ("equilibrium", "10", "1")


def test_an_ablation_with_logs_shows_how_far_the_searches_come(tmp_path, cost):
    for number, (weight, gradient) in enumerate([(1.0, 0.25), (1.0, 0.75), (0.1, 8.0)]):
        made = on_molecules([0.5], [0.5], "equilibrium", number, readout_aux_weight=weight)
        points = [
            {
                "step": step,
                "metrics": {"readout_aux_loss": gradient + step},
                "inner": {"readout.aggregation": {"residual_max": gradient * step}},
            }
            for step in (1, 2)
        ]
        write_folder(tmp_path / str(number), made, points)
    with_logs = script.ablation(script.read_folder(tmp_path), "readout_aux_weight", cost)
    found = [(row["readout aux weight"], *tuple(row.values())[-2:]) for row in rows(with_logs)]
    assert found == [("0.1", "16", "10"), ("1.0", "1", "2.5")]
    write_folder(tmp_path / "sum", on_molecules([0.5], [0.5]), [{"step": 2, "metrics": {}}])
    table = script.ablation(script.read_folder(tmp_path), "readout_aux_weight", cost)
    assert table.rows[-1][-2:] == ("-", "-")  # it has no search
    written(tmp_path / "plain", on_molecules([0.5], [0.5], "equilibrium", readout_aux_weight=2.0))
    found = script.read_folder(tmp_path) + script.read_folder(tmp_path / "plain")
    table = script.ablation(found, "readout_aux_weight", cost)
    assert len(table.headings) == len(with_logs.headings) - 2  # one of them has no log


def test_the_cost_of_steps_stands_beside_the_paper(tmp_path, cost):
    """An epoch is ten steps; there is no solo run of five inner steps."""
    solo = [
        on_molecules([0.5], [0.5], convolution="gcn", seconds=0.5),
        on_molecules([0.5], [0.5], "equilibrium", convolution="gcn", inner_steps=2, seconds=2),
        on_molecules([0.5], [0.5], "equilibrium", convolution="gcn", inner_steps=10, seconds=3),
    ]
    runs = [replace(one, training_seconds=99.0) for one in solo]
    runs.append(on_molecules([0.5], [0.5], "equilibrium", convolution="gcn", inner_steps=5))
    cost = script.Cost(cost.training, written(tmp_path / "solo", *solo))
    ablations = {"steps": written(tmp_path / "steps", *runs)}
    found = script.tables({"results": []}, ablations, cost)
    assert [row[1:] for row in found["time"].rows] == [
        ("5", "1", "5.5", "1"),
        ("20", "4", "7.83", "1.42"),
        ("-", "-", "10.1", "1.84"),
        ("30", "6", "15.7", "2.86"),
    ]
    assert [(row[1], row[-1]) for row in found["steps"].rows] == [
        ("2", "0.257"), ("5", "0.263"), ("10", "0.268"), ("-", "-")
    ]  # fmt: skip


def test_the_script_reads_records_and_writes_page_and_figures(tmp_path, monkeypatch):
    names = ("results", "toxcast", "qm9", "dropout", "capacity")
    records = use_folder(script, tmp_path, monkeypatch, *names)
    monkeypatch.setattr(script, "draw_epochs", lambda *_: b"epochs")
    monkeypatch.setattr(script, "draw_setting", lambda *_: b"setting")
    sizes = [on_molecules([0.5], [0.5], "equilibrium", potential=p) for p in ((6, 3), (60, 30))]
    written(records / "molecules", on_molecules([0.5], [0.25]),
            on_molecules([0.5], [0.3], "equilibrium"))  # fmt: skip
    written(records / "molecules-dropout",
            on_molecules([0.5], [0.1], "equilibrium", readout_dropout=0.5))  # fmt: skip
    precise = {"measure": "average_precision", "dataset": "toxcast"}
    written(records / "molecules-toxcast", on_molecules([0.5], [0.75], **precise))
    written(records / "molecules-qm9",
            on_molecules([-0.5], [-0.125], measure="mae", dataset="qm9"))  # fmt: skip
    written(records / "molecules-ablations" / "capacity", *sizes)
    written(records / "molecules-speed", *sizes)
    script.main()
    assert {file.name for file in script.FIGURES.iterdir()} == {
        "molecules-epochs.png",
        "molecules-capacity.png",
    }
    for row in (
        "| GIN | sum | sum | 1 | 1 | 0.5000 | 0.2500 |",
        "| GIN | sum | sum | 1 | 1 | 0.5000 | 0.7500 |",
        "| GIN | sum | sum | 1 | 1 | 0.5000 | 0.1250 |",
        "| equilibrium | [60, 30] | 1 | 1 | 0.5000 | 0.5000 | 0.5000 | 1,234 | 10 | - |",
        "| GIN | equilibrium, readout dropout 0.5 | 1 | 1 | 0.5000 | 0.1000 |",
    ):
        assert row in script.PAGE.read_text()


@needs_page("molecules")
def test_the_numbers_of_the_page_are_those_of_the_records():
    check_page("molecules", script.tables(*script.read()))
