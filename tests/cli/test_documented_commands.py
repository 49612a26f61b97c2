"""Commands of the documentation."""

import re
import shlex

import pytest
from typer.main import get_command

from equipool.cli import make_app
from equipool.cli.train import settings_of_task
from python_blocks import ROOT

FOUND = [*ROOT.glob("docs/**/*.md"), *(ROOT / name for name in ("README.md", "records/README.md"))]
SHOWN = re.compile(r"^equipool (\w.*?)(?: +#.*)?$", re.MULTILINE)
PAGES = {
    page.relative_to(ROOT).as_posix(): lines
    for page in sorted(FOUND)
    if (lines := SHOWN.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")))
}


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_the_flags_that_a_page_shows_and_take_their_values(page):
    for words in map(shlex.split, PAGES[page]):
        command = get_command(make_app(words)).get_command(None, words[0])
        if words[0] in ("train", "sweep"):
            command = command.get_command(None, words[1])
        known = {option for parameter in command.params for option in parameter.opts}
        for flag in (word for word in words if word.startswith("--")):
            assert flag in known, f"{words}: {flag}"
        if words[0] in ("train", "sweep"):
            settings = settings_of_task(words[1]).values()
            for setting in settings:
                if setting.flag in words:
                    setting.read_several(words[words.index(setting.flag) + 1])
