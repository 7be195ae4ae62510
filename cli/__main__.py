"""`python -m cli` is `phaseserve`."""

import sys

from cli.main import main

sys.exit(main())
