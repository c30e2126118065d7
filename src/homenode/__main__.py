"""`python -m homenode` is the command `homenode`."""

import sys

from homenode.cli.main import main

sys.exit(main())
