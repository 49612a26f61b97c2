"""Tables and pictures of reproduction/molecules.md. The paper's numbers, from its table and its
appendix, are beside ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from drawing import legend_below, mean_curve, picture, styles
from records import Run, group, ran_on, read_runs
from tables import columns, number, span, table
from tables import spread as spread_of

PAGE = "reproduction/molecules.md"
MONITOR = "valid_score"
WORDS = {"roc_auc": "ROC-AUC", "average_precision": "average precision"}
VARIED = {"steps": "inner_steps", "aux-weight": "readout_aux_weight", "capacity": "potential"}
DRAWN = (("equilibrium", "sum"), ("mean", "sum"), ("sum", "sum"))  # readout and messages
# The paper's average precision on MOLPCBA. Of its table that of the test part, by network, readout
# and messages; its last row, 0.258 for equilibrium aggregation of both, names no network.
PAPER_RESULTS = {
    ("GCN", "sum", "sum"): 0.203,
    ("GCN", "attention", "sum"): 0.229,
    ("GCN", "pna", "sum"): 0.209,
    ("GCN", "equilibrium", "sum"): 0.252,
    ("GIN", "sum", "sum"): 0.232,
    ("GIN", "attention", "sum"): 0.234,
    ("GIN", "pna", "sum"): 0.244,
    ("GIN", "equilibrium", "sum"): 0.246,
}
# Of its ablations that of the validation part, by the varied value.
PAPER_ABLATIONS = {
    "steps": {"1": 0.235, "2": 0.257, "5": 0.263, "10": 0.268},
    "aux-weight": {"0.0001": 0.250, "0.001": 0.261, "0.01": 0.257, "0.1": 0.254, "1.0": 0.263},
    "capacity": {
        "[60, 30, 3]": 0.208,
        "[180, 90, 10]": 0.218,
        "[360, 180, 19]": 0.228,
        "[600, 300, 32]": 0.233,
        "[780, 390, 42]": 0.222,
    },
}
PAPER_HOURS = {0: 5 + 30 / 60, 2: 7 + 50 / 60, 5: 10 + 8 / 60, 10: 15 + 44 / 60}  # by inner steps

Group = Sequence[Run]
Cells = Mapping[str, Callable[[Group], str]]


def measure(run: Run) -> str:
    """Name of the metric that the score is."""
    return "roc_auc" if run.fields["dataset"] == "molhiv" else "average_precision"


def network(runs: Group) -> str:
    return runs[0].fields["convolution"].upper()


def messages(runs: Group) -> str:
    return runs[0].fields["local_aggregation"]


def score(runs: Group) -> float:
    """The mean test score at the best validation score."""
    return statistics.fmean(run.selected("test_score", MONITOR) for run in runs)


def steps_per_epoch(run: Run) -> int:
    """Of full batches. Few are smaller, because of large molecules."""
    molecules = run.config["data"]["molecules"]["train"]
    limit = run.fields.get("train_limit") or math.inf
    return math.ceil(min(molecules, limit) / run.fields["batch_size"])


def seconds_per_epoch(run: Run) -> float | None:
    """Without other runs on the device; None if no run was timed alone."""
    if not run.timed_by:
        return None
    return run.training_seconds / run.steps * steps_per_epoch(run)


def spread(values: Sequence[float]) -> str:
    return spread_of(values, lambda value: f"{value:.4f}")


def measured(runs: Group) -> Cells:
    """The columns that all tables share, for runs of one data set."""
    name = measure(runs[0])
    word = WORDS[name]
    return {
        "seeds": lambda g: str(len(g)),
        "epochs": lambda g: span([round(r.last_step / steps_per_epoch(r)) for r in g]),
        f"best validation {word}": lambda g: spread(
            [run.selected(f"valid_{name}", MONITOR) for run in g]
        ),
        f"test {word} there": lambda g: spread(
            [run.selected(f"test_{name}", MONITOR) for run in g]
        ),
        f"test {word} at the end": lambda g: spread([run.last(f"test_{name}") for run in g]),
        "parameters": lambda g: f"{g[0].num_parameters:,}",
    }


def seconds_cell(runs: Group) -> str:
    seconds = seconds_per_epoch(runs[0])
    return "-" if seconds is None else number(seconds)


def methods(runs: Group) -> list[Group]:
    """By network, the best first."""
    groups = group(runs, lambda run: (network([run]), run.label, messages([run]))).values()
    return sorted(groups, key=lambda some: (network(some), -score(some)))


def results(runs: Group, paper: Cells) -> str:
    return columns(methods(runs), {
        "network": network,
        "readout": lambda g: g[0].label,
        "messages": messages,
        **measured(runs),
        "seconds per epoch": seconds_cell,
        **paper,
    })  # fmt: skip


def beside_the_paper(runs: Group) -> str:
    scores = PAPER_RESULTS.get((network(runs), runs[0].label, messages(runs)))
    return "-" if scores is None else f"{scores:.3f}"


def tried(runs: Group) -> str:
    """Scores with one setting or another changed, the best of each network first."""
    return columns(
        methods(runs),
        {"network": network, "what was changed": lambda g: g[0].label, **measured(runs)},
    )


def values(runs: Group, study: str) -> dict[str, Group]:
    """The runs of an ablation by the value of its setting, a method without the setting last."""
    setting = VARIED[study]

    def value(run: Run) -> str:
        return "-" if run.label != "equilibrium" else str(run.fields[setting])

    def order(item: tuple[str, Group]) -> tuple[bool, float]:
        number = item[1][0].fields[setting]
        return item[0] == "-", sum(number) if isinstance(number, list) else number

    return dict(sorted(group(runs, value).items(), key=order))


def ablation(runs: Group, study: str) -> str:
    """Scores for each value of a setting, and how far the searches come, where that is known."""
    found = values(runs, study)
    value_of = {id(some): value for value, some in found.items()}
    paper = PAPER_ABLATIONS[study]

    def mean_of_search(name: str) -> Callable[[Group], str]:
        return lambda g: number(statistics.fmean(run.search[name] for run in g))

    return columns(found.values(), {
        "aggregation": lambda g: g[0].label,
        VARIED[study].replace("_", " "): lambda g: value_of[id(g)],
        **measured(runs),
        "seconds per epoch": seconds_cell,
        **({
            "largest gradient": mean_of_search("residual_max"),
            "auxiliary loss": mean_of_search("aux_loss"),
        } if runs[0].search else {}),
        "paper, validation on MOLPCBA": lambda g: (
            f"{paper[value_of[id(g)]]:.3f}" if value_of[id(g)] in paper else "-"
        ),
    })  # fmt: skip


def time(runs: Group) -> str:
    """The cost of inner steps compared with a sum, here and in the paper."""
    seconds = {
        0 if run.label == "sum" else run.fields["inner_steps"]: seconds_per_epoch(run)
        for run in runs
    }
    rows = (
        (
            f"equilibrium, {steps} inner steps" if steps else "sum",
            number(seconds[steps]),
            number(seconds[steps] / seconds[0]),
            number(hours),
            number(hours / PAPER_HOURS[0]),
        )
        for steps, hours in PAPER_HOURS.items()
    )
    headings = ("readout", "seconds per epoch", "/ sum", "paper, hours of 2 million steps", "/ sum")
    return table(headings, rows)


def blocks() -> dict[str, str]:
    runs = read_runs("molecules")
    plain = [run for run in runs["main"] if (run.label, messages([run])) == DRAWN[0]]
    return {
        "ran_on": ran_on(runs["main"]),
        "results": results(runs["main"], {"paper, test on MOLPCBA": beside_the_paper}),
        "toxcast": results(runs["toxcast"], {}),
        "dropout": tried([*plain, *runs["dropout"]]),
        "quick": tried(runs["quick"]),
        "time": time(runs["steps"]),
        **{study.replace("-", "_"): ablation(runs[study], study) for study in VARIED},
    }


def draw_epochs(runs: Group) -> None:
    """The score and the loss against epochs, of the validation part solid and of the test part
    dashed: means over the seeds. A row for each network."""
    groups = [g for g in methods(runs) if (g[0].label, messages(g)) in DRAWN]
    drawn = {
        name: look | {"marker": "", "linestyle": "-"}
        for name, look in styles([some[0].label for some in groups]).items()
    }
    with picture("molecules-epochs", 2, 2, (9, 6.4)) as axes:
        for row, name in zip(axes, ("GCN", "GIN"), strict=True):
            for some in (some for some in groups if network(some) == name):
                for part, dashes in (("valid", "-"), ("test", "--")):
                    look = drawn[some[0].label] | {"linestyle": dashes}
                    for ax, metric in zip(row, ("roc_auc", "loss"), strict=True):
                        curve = mean_curve(some, f"{part}_{metric}")
                        epochs = [step / steps_per_epoch(some[0]) for step in curve["step"]]
                        ax.plot(epochs, curve["mean"], **look)
            row[0].set(title=f"{name}: ROC-AUC, validation solid, test dashed", xlabel="epochs")
            row[1].set(title=f"{name}: loss", xlabel="epochs")
        legend_below(axes, drawn)


def draw_ablation(runs: Group, study: str) -> None:
    """The best validation score, and the seconds per step, against the values of a setting: small
    dots are runs, lines their means."""
    found = values(runs, study)
    constant, ticks = found.pop("-", None), list(found)
    looks = styles(["equilibrium", "sum"])
    with picture(f"molecules-{study}", 1, 2, (9, 3.6)) as axes:
        for ax, title, cost in zip(
            axes[0], ("best validation ROC-AUC", "seconds per step"), (False, True), strict=True
        ):

            def value(run: Run, cost: bool = cost) -> float:
                return run.training_seconds / run.steps if cost else run.selected(MONITOR, MONITOR)

            ys = [[value(run) for run in some] for some in found.values()]
            ax.plot(ticks, [statistics.fmean(some) for some in ys], **looks["equilibrium"])
            for tick, some in zip(ticks, ys, strict=True):
                ax.plot(
                    [tick] * len(some), some, ".", color=looks["equilibrium"]["color"], alpha=0.6
                )
            if constant:
                ax.axhline(
                    statistics.fmean(map(value, constant)), ls="--", color=looks["sum"]["color"]
                )
            ax.set(title=title, xlabel=VARIED[study].replace("_", " "))
            ax.tick_params("x", rotation=15 if len("".join(ticks)) > 30 else 0)
        if constant:
            legend_below(axes, looks)


def draw() -> None:
    runs = read_runs("molecules")
    draw_epochs(runs["main"])
    for study in VARIED:
        draw_ablation(runs[study], study)
