"""`python -m equipool`: the command without its script."""

import sys

from equipool.cli import main

sys.exit(main())
