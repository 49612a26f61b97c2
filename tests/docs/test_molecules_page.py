"""The script that makes tables and pictures of the page about molecules."""

from dataclasses import replace

import pytest
from molecule_records import TRAINING, on_molecules
from page_script import check_main, check_page, load_script, needs_page, page_of_blocks, rows
from records import write_folder, written

script = load_script("molecules")


@pytest.fixture
def cost(tmp_path):
    """An epoch of the sum in a GCN takes 5 seconds, after 100 to begin with."""
    begin = on_molecules([0.5, 0.5], [0.5, 0.5], convolution="gcn", seed=7, seconds=0.5)
    for entry in begin.curve:
        entry["training_seconds"] += 100
    return script.Cost({"molhiv": TRAINING}, written(tmp_path / "speed", begin))


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


def test_scores_where_the_validation_was_best_and_at_the_end(runs, cost):
    first, second, *others = rows(script.results(runs, cost))
    assert first == {
        "network": "GCN",
        "readout": "sum",
        "messages": "sum",
        "seeds": "2",
        "epochs": "3",
        "best validation ROC-AUC": "0.8500 ± 0.0707",  # 0.8 and 0.9
        "test ROC-AUC there": "0.7500 ± 0.0707",  # 0.7 and 0.8
        "test ROC-AUC at the end": "0.8500 ± 0.0707",  # 0.9 and 0.8
        "parameters": "1,234",
        "seconds an epoch": "5",
    }
    assert tuple(second.values())[:3] == ("GCN", "attention", "sum")
    assert tuple(second.values())[3:7] == ("1", "2", "0.9000", "0.6500")
    assert second["test ROC-AUC at the end"] == "0.9900"
    assert second["seconds an epoch"] == "-"
    assert [tuple(row.values())[:3] for row in others] == [
        ("GIN", "equilibrium", "equilibrium"),
        ("GIN", "equilibrium", "sum"),
    ]


def test_variants_are_told_and_not_mixed(tmp_path, cost):
    runs = written(
        tmp_path / "runs",
        on_molecules([0.5], [0.5], "equilibrium", atom_dropout=0.0),
        on_molecules([0.5], [0.7], "equilibrium", atom_dropout=0.1),
        on_molecules([0.5], [0.6], "sum"),
    )
    assert [row["readout"] for row in rows(script.results(runs, cost))] == [
        "equilibrium, atom_dropout 0.1",
        "sum",
        "equilibrium, atom_dropout 0.0",
    ]


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
    assert table.headings[:4] == ("network", "what was changed", "seeds", "epochs")
    assert table.headings[-1] == "parameters"
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
    ("dataset", "measure", "sign", "word"),
    [
        ("toxcast", "average_precision", 1, "average precision"),
        ("tox21", "roc_auc", 1, "ROC-AUC"),
        ("qm9", "mae", -1, "mean absolute error"),
    ],
)
def test_other_data_is_told_by_its_own_measure(tmp_path, dataset, measure, sign, word):
    """Errors are the scores with a minus sign, so the least is the best."""
    worse, better = sorted(sign * value for value in (0.25, 0.5))
    runs = written(
        tmp_path / "runs",
        on_molecules([worse, better], [worse, worse], measure=measure, dataset=dataset),
        on_molecules([better], [better], "equilibrium", measure=measure, dataset=dataset),
    )
    first, second = rows(script.results(runs, script.Cost({dataset: 8}, [])))
    assert (first["readout"], second["readout"]) == ("equilibrium", "sum")
    assert second[f"best validation {word}"] == f"{sign * better:.4f}"
    assert second[f"test {word} there"] == f"{sign * worse:.4f}"
    assert second["epochs"] == "10"  # 20 steps of 4


def test_an_epoch_is_what_is_trained_on(tmp_path, cost):
    whole, part = written(
        tmp_path / "runs",
        on_molecules([0.5], [0.5]),
        on_molecules([0.5], [0.5], train_limit=18),
    )
    assert (cost.steps(whole), cost.steps(part)) == (10, 5)
    assert (cost.epochs(whole), cost.epochs(part)) == (1, 2)
    assert cost.epochs(replace(whole, steps=19)) == 1  # as evaluated


def test_the_number_of_training_molecules_is_read_from_the_records(tmp_path):
    """Also of runs in directories, of which no other file is a record."""
    written(tmp_path / "molecules" / "more", on_molecules([0.5], [0.5]))
    write_folder(tmp_path / "molecules" / "run", on_molecules([0.5], [0.5], dataset="qm9"), [])
    (tmp_path / "molecules" / "run" / "examination-last").mkdir()
    (tmp_path / "molecules" / "run" / "examination-last" / "examination.json").write_text("{}")
    (tmp_path / "molecules" / "notes.md").write_text("hello")
    found = script.training_molecules([tmp_path / "molecules"])
    assert found == {"molhiv": TRAINING, "qm9": TRAINING}


def test_a_data_set_has_one_training_part(tmp_path):
    written(tmp_path / "runs", on_molecules([0.5], [0.5]), on_molecules([0.5], [0.5], training=78))
    with pytest.raises(ValueError, match=r"molhiv has 39 molecules .* and 78 in another"):
        script.training_molecules([tmp_path / "runs"])


def test_an_ablation_goes_through_its_values(tmp_path, cost):
    """A sum has no inner steps."""
    runs = written(
        tmp_path / "steps",
        on_molecules([0.5], [0.6], "equilibrium", convolution="gcn", inner_steps=10),
        on_molecules([0.7], [0.8], "equilibrium", convolution="gcn", inner_steps=2),
        on_molecules([0.9], [0.6], "equilibrium", 1, convolution="gcn", inner_steps=2),
        on_molecules([0.5], [0.55], convolution="gcn"),
    )
    table = script.ablation(runs, "inner_steps", cost)
    assert table.headings[:4] == ("aggregation", "inner steps", "seeds", "epochs")
    assert table.rows == (
        ("equilibrium", "2", "2", "1", "0.8000 ± 0.1414", "0.7000 ± 0.1414", "0.7000 ± 0.1414",
         "1,234", "-"),
        ("equilibrium", "10", "1", "1", "0.5000", "0.6000", "0.6000", "1,234", "-"),
        ("sum", "-", "1", "1", "0.5000", "0.5500", "0.5500", "1,234", "5"),
    )  # fmt: skip


def test_an_ablation_with_logs_tells_how_far_the_searches_come(tmp_path, cost):
    """Of the last entry, and beside the right value."""
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
    table = script.ablation(script.recorded(tmp_path), "readout_aux_weight", cost)
    told = [(row["readout aux weight"], *tuple(row.values())[-2:]) for row in rows(table)]
    assert told == [("0.1", "16", "10"), ("1.0", "1", "2.5")]
    write_folder(tmp_path / "sum", on_molecules([0.5], [0.5]), [{"step": 2, "metrics": {}}])
    found = script.ablation(script.recorded(tmp_path), "readout_aux_weight", cost)
    assert found.rows[-1][-2:] == ("-", "-")  # it has no search
    written(tmp_path / "plain", on_molecules([0.5], [0.5], "equilibrium", readout_aux_weight=2.0))
    found = script.recorded(tmp_path) + script.recorded(tmp_path / "plain")
    table = script.ablation(found, "readout_aux_weight", cost)
    assert table.headings[-1] == "seconds an epoch"  # one of them has no log


def test_what_steps_cost_is_told_beside_the_paper(tmp_path, cost):
    """An epoch is ten steps; there is no run alone of five inner steps."""
    alone = [
        on_molecules([0.5], [0.5], convolution="gcn", seconds=0.5),
        on_molecules([0.5], [0.5], "equilibrium", convolution="gcn", inner_steps=2, seconds=2),
        on_molecules([0.5], [0.5], "equilibrium", convolution="gcn", inner_steps=10, seconds=3),
    ]
    runs = [replace(one, training_seconds=99.0) for one in alone]
    runs.append(on_molecules([0.5], [0.5], "equilibrium", convolution="gcn", inner_steps=5))
    cost = script.Cost(cost.training, written(tmp_path / "alone", *alone))
    ablations = {"steps": written(tmp_path / "steps", *runs)}
    found = script.tables({"results": []}, ablations, cost)
    assert found["time"].rows == (
        ("sum", "5", "1", "5.5", "1"),
        ("equilibrium, 2 inner steps", "20", "4", "7.83", "1.42"),
        ("equilibrium, 5 inner steps", "-", "-", "10.1", "1.84"),
        ("equilibrium, 10 inner steps", "30", "6", "15.7", "2.86"),
    )
    assert [(row[1], row[-1]) for row in found["steps"].rows] == [
        ("2", "0.257"), ("5", "0.263"), ("10", "0.268"), ("-", "-")
    ]  # fmt: skip


def test_results_stand_beside_those_of_the_paper(runs, cost):
    table = script.tables({"results": runs, "toxcast": runs}, {}, cost)
    told = {row[:3]: row[-1] for row in table["results"].rows}
    assert told == {
        ("GCN", "sum", "sum"): "0.203",
        ("GCN", "attention", "sum"): "0.229",
        ("GIN", "equilibrium", "sum"): "0.246",
        ("GIN", "equilibrium", "equilibrium"): "-",
    }
    assert "paper, test on MOLPCBA" not in table["toxcast"].headings


def test_an_ablation_of_one_value_tells_it(tmp_path, cost):
    """As where the others are still to be trained."""
    runs = written(tmp_path / "steps", on_molecules([0.5], [0.6], "equilibrium", inner_steps=2))
    (row,) = rows(script.ablation(runs, "inner_steps", cost))
    assert (row["aggregation"], row["inner steps"], row["seeds"]) == ("equilibrium", "2", "1")
    found = script.pictures([], {"steps": runs}, script.Cost(cost.training, runs))
    assert found["steps"].startswith(b"\x89PNG")


def test_tables_are_named_as_blocks_of_a_page_can_be(runs, cost, tmp_path):
    weights = written(
        tmp_path / "weights",
        *(on_molecules([0.5], [0.5], "equilibrium", readout_aux_weight=w) for w in (1.0, 0.1)),
    )
    ablations = {"aux-weight": weights, "steps": []}
    found = script.tables({"results": runs, "qm9": []}, ablations, cost)
    assert list(found) == ["ran_on", "results", "aux_weight"]
    assert [row[1] for row in found["aux_weight"].rows] == ["0.1", "1.0"]


def test_the_curves_are_drawn_by_epochs(runs, cost, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *place, **options: drawn.append(self))
    script.draw_epochs(runs, cost)
    (figure,) = drawn
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "GCN: ROC-AUC", "GCN: loss", "GIN: ROC-AUC", "GIN: loss"
    ]  # fmt: skip
    lines = [{line.get_label(): line for line in ax.lines} for ax in figure.axes]
    assert [set(found) for found in lines[1:3]] == [
        {"sum, valid", "sum, test"},
        {"equilibrium, valid", "equilibrium, test"},
    ]
    score, loss = lines[0]["sum, test"], lines[1]["sum, valid"]
    assert list(score.get_xdata()) == [1, 2, 3]
    assert list(score.get_ydata()) == pytest.approx([0.6, 0.8, 0.85])
    assert list(loss.get_ydata()) == pytest.approx([1.7, 1.7, 1.75])
    assert (score.get_linestyle(), loss.get_linestyle()) == ("--", "-")
    assert list(lines[2]["equilibrium, test"].get_ydata()) == [0.6, 0.7]  # not in both places


def test_the_mean_is_drawn_too(cost, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(script, "draw_epochs", lambda *some: given.append(some) or b"picture")
    one = written(tmp_path / "runs", on_molecules([0.5], [0.5], "mean"))
    assert script.pictures(one, {}, cost) == {"epochs": b"picture"}


def test_there_is_no_picture_of_no_curves(cost, tmp_path):
    other = written(tmp_path / "runs", on_molecules([0.5], [0.5], "attention"))
    assert script.pictures(other, {}, cost) == {}


def test_the_picture_of_an_ablation_needs_all_its_seconds(runs, cost, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(script, "draw_varied", lambda *some: given.append(some) or b"picture")
    pair = [
        on_molecules([0.5], [0.5], "equilibrium", inner_steps=number, seconds=number)
        for number in (1, 2)
    ]
    some = written(tmp_path / "shared", *pair)
    assert list(script.pictures(runs, {"steps": some}, cost)) == ["epochs"]
    pair = [
        on_molecules([0.5], [0.5], "equilibrium", 5, inner_steps=number, seconds=number / 4)
        for number in (1, 2)
    ]
    timed = script.Cost(cost.training, written(tmp_path / "alone", *pair))
    assert list(script.pictures(runs, {"steps": some}, replace(timed, alone=timed.alone[:1]))) == [
        "epochs"
    ]
    assert script.pictures(runs, {"steps": some}, timed)["steps"] == b"picture"
    ((groups, setting),) = given
    assert setting == "inner_steps"
    assert sorted(group.runs[0].training_seconds for group in groups) == [2.5, 5.0]


def test_all_is_made_from_the_folders_of_records(tmp_path, monkeypatch):
    names = ("ran_on", "results", "toxcast", "qm9", "dropout", "capacity")
    records = page_of_blocks(script, tmp_path, monkeypatch, *names)
    sizes = [
        on_molecules([0.5], [0.5], "equilibrium", potential=potential)
        for potential in ((6, 3), (60, 30))
    ]
    written(records / "molecules", on_molecules([0.5], [0.25]),
            on_molecules([0.5], [0.3], "equilibrium"),
            on_molecules([0.5], [0.2], "equilibrium", local_aggregation="equilibrium"))  # fmt: skip
    written(records / "molecules-dropout",
            on_molecules([0.5], [0.1], "equilibrium", readout_dropout=0.5))  # fmt: skip
    written(records / "molecules-toxcast", on_molecules([0.5], [0.75], measure="average_precision",
                                                        dataset="toxcast"))  # fmt: skip
    written(records / "molecules-qm9", on_molecules([-0.5], [-0.125], measure="mae",
                                                    dataset="qm9"))  # fmt: skip
    written(records / "molecules-ablations" / "capacity", *sizes)
    written(records / "molecules-speed", *sizes)
    lines = (
        "\n3 runs on abacus, torch 2.13.0.\n",
        "| GIN | sum | sum | 1 | 1 | 0.5000 | 0.2500 |",
        "| GIN | sum | sum | 1 | 1 | 0.5000 | 0.7500 |",
        "| GIN | sum | sum | 1 | 1 | 0.5000 | 0.1250 |",
        "| equilibrium | [60, 30] | 1 | 1 | 0.5000 | 0.5000 | 0.5000 | 1,234 | 10 | - |",
        "| GIN | equilibrium | 1 | 1 | 0.5000 | 0.3000 | 0.3000 | 1,234 |\n"
        "| GIN | equilibrium, readout dropout 0.5 | 1 | 1 | 0.5000 | 0.1000 | 0.1000 | 1,234 |\n",
    )
    check_main(script, lines, {"molecules-epochs.png", "molecules-capacity.png"})


@needs_page("molecules")
def test_the_page_is_that_of_the_records():
    check_page("molecules", script.tables(*script.read()))
