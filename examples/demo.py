"""Which pooling learns what? Five poolings, three functions of a set: `python examples/demo.py`.

It takes a minute, prints a table, and writes index.html: the errors as bars, the penalties that the
convex equilibrium has learned, and points to drag. `benchmarks/functions.py` is the long form.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from functions import SIZE, Network, error, train

FUNCTIONS = ("median", "90 % quantile", "maximum")
POOLINGS = ("location without weights", "pna", "attention", "mean", "equilibrium")
LABELS = [name.partition(" ")[0] for name in POOLINGS]
PAGE = Path(__file__).with_name("demo_page.html")


def learned_penalty(network: Network) -> dict[str, float]:
    """Asymmetry and width of the narrowest penalty."""
    potential = network.pool.layer.potential
    at = potential.width.argmin()
    found = {"tau": potential.asymmetry, "delta": potential.width}
    return {name: value.flatten()[at].item() for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    parser.add_argument("--seconds", type=float, default=3.5, help="training time of each network")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(f"Each network learns a function of {SIZE} numbers for {chosen.seconds:g} CPU seconds.")
    print("Error on new sets, in % of the function's standard deviation:\n")
    print(f"{'':14}" + "".join(f"{name:>13}" for name in LABELS))
    functions: list[dict[str, Any]] = []
    for function in FUNCTIONS:
        print(f"{function:14}", end="", flush=True)
        found: dict[str, Any] = {"name": function, "errors": {}}
        for pooling, label in zip(POOLINGS, LABELS, strict=True):
            network, _ = train(function, pooling, chosen.seconds, seed=0)
            found["errors"][label] = error(network, function, SIZE)
            print(f"{found['errors'][label]:13.2g}", end="", flush=True)
            if label == "location":
                found["penalty"] = learned_penalty(network)
        functions.append(found)
        print()
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = json.dumps({"seconds": chosen.seconds, "functions": functions})
    page = PAGE.read_text(encoding="utf-8").replace('id="results">{}<', f'id="results">{results}<')
    (chosen.out / "index.html").write_text(page, encoding="utf-8")
    print(f"\nOpen {chosen.out / 'index.html'} to see bars, penalties, and points to drag.")


if __name__ == "__main__":
    main()
