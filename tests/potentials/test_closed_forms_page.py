"""The page on closed forms, and the script that draws its pictures."""

import doctest
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


class TestPage:
    """The page on closed forms: its examples give what it says, its pictures are what its script
    draws."""

    page = (DOCS / "closed-forms.md").read_text(encoding="utf-8")

    def test_examples(self):
        blocks = re.findall(r"^```pycon\n(.*?)^```", self.page, flags=re.DOTALL | re.MULTILINE)
        examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "page", None, 0)
        assert len(examples.examples) > 30
        complaints = []
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
        runner.run(examples, out=complaints.append)
        assert not complaints, "".join(complaints)
