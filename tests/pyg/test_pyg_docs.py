"""The examples of the page on PyTorch Geometric run, one after the other."""

import re
import sys
from pathlib import Path
from types import ModuleType

import torch

PAGE = Path(__file__).parents[2] / "docs" / "pyg.md"


def test_the_page_runs(capsys, monkeypatch):
    text = PAGE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) == text.count("```python") >= 9
    torch.manual_seed(0)
    page = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # a convolution looks up where it was defined
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], PAGE, "exec"), vars(page))
    assert "tensor" in capsys.readouterr().out
