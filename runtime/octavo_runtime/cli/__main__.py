"""`python -m octavo_runtime.cli`: the program `octavo`, where its script is not on PATH."""

import sys

from octavo_runtime.cli import main

sys.exit(main())
