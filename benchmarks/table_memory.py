"""Time and memory of `equipool fit` and `equipool predict` on a large generated table; exits with 1
if one of them needs more than 3 GiB.

    python benchmarks/table_memory.py --out benchmarks/records/cpu-tables.json

Ten million rows in 100,000 bags, of which `fit` trains for a minute. The table takes 0.5 GB as
Parquet and 0.9 GB as CSV in the temporary directory, and reading it up to another 0.4 GB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import torch
import typer
from pyarrow import csv, parquet

from equipool.bench.command import Commit, Out, check_out
from equipool.bench.record import FORMAT, git_commit
from equipool.environment import hardware, now, versions
from equipool.estimators import make_bags

ALLOWED = 3 * 2**30  # bytes
BAGS_AT_ONCE = 2500
FEATURES, MIN_SIZE, MAX_SIZE = 8, 50, 150

app = typer.Typer(add_completion=False)


def write_tables(folder: Path, num_bags: int, seed: int) -> dict[str, Path]:
    """The same bags as CSV and as Parquet, a part at a time."""
    files = {name: folder / f"bags.{name}" for name in ("csv", "parquet")}
    draw = np.random.RandomState(seed)
    writers: list[Any] = []
    for first in range(0, num_bags, BAGS_AT_ONCE):
        bags, labels = make_bags(
            min(BAGS_AT_ONCE, num_bags - first), num_features=FEATURES, min_size=MIN_SIZE,
            max_size=MAX_SIZE, random_state=draw,
        )  # fmt: skip
        sizes, x = [len(bag) for bag in bags], np.concatenate(bags)
        numbers = np.arange(first, first + len(bags))
        columns = {"bag": np.repeat(numbers, sizes), "label": np.repeat(labels, sizes)}
        part = pa.table(columns | {f"x{n}": x[:, n] for n in range(FEATURES)})
        if not writers:
            writers = [
                csv.CSVWriter(files["csv"], part.schema),
                parquet.ParquetWriter(files["parquet"], part.schema),
            ]
        for writer in writers:
            writer.write_table(part)
    for writer in writers:
        writer.close()
    return files


def run(words: list[str]) -> dict[str, float]:
    """Run the command. Returns its time and its largest resident memory."""
    begin = perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "equipool", *words])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise typer.Exit(1)
    scale = 1 if sys.platform == "darwin" else 1024
    return {"seconds": perf_counter() - begin, "peak_bytes": usage.ru_maxrss * scale}


@app.command()
def main(
    bags: Annotated[int, typer.Option(help="number of bags, of about 100 elements")] = 10**5,
    file: Annotated[list[str], typer.Option(help="csv or parquet; can be repeated")] = [  # noqa: B006
        "parquet",
        "csv",
    ],
    max_seconds: Annotated[float, typer.Option(help="seconds of training")] = 60.0,
    threads: Annotated[str, typer.Option(help="as in equipool predict")] = "auto",
    seed: Annotated[int, typer.Option(help="random seed")] = 0,
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Measure the commands on a generated table."""
    check_out(out)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        files = write_tables(Path(name), bags, seed)
        about = {
            "format": FORMAT, "command": f"python benchmarks/table_memory.py --bags {bags}",
            "date": now(), "commit": commit or git_commit(), "versions": versions(),
            "hardware": hardware(torch.device("cpu")), "seed": seed, "bags": bags,
            "rows": parquet.ParquetFile(files["parquet"]).metadata.num_rows, "features": FEATURES,
            "max_seconds": max_seconds, "threads": threads, "allowed_bytes": ALLOWED,
        }  # fmt: skip
        cpu = ["--device", "cpu"]
        fit = ["--bag", "bag", "--label", "label", "--max-seconds", str(max_seconds)]
        for kind in file:
            model, table = f"{name}/model-{kind}", str(files[kind])
            calls = {
                "fit": ["fit", table, *fit, "--seed", str(seed), "--out", model, *cpu],
                "predict": ["predict", model, table, "--out", f"{name}/{kind}.parquet", *cpu,
                            "--threads", threads],
            }  # fmt: skip
            for command, words in calls.items():
                size = files[kind].stat().st_size
                rows.append({"command": command, "file": kind, "bytes": size} | run(words))
                print(rows[-1], flush=True)
                if out is not None:
                    out.write_text(json.dumps(about | {"measured": rows}, indent=1) + "\n")
    if any(row["peak_bytes"] > ALLOWED for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
