"""`python -m likewise.cli` is the command `likewise`."""

import sys

from likewise.cli import main

sys.exit(main())
