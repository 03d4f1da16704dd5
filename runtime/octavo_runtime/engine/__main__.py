"""`python -m octavo_runtime.engine`: started by the server, never by hand."""

import sys

from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.process import run

sys.exit(run(load_executor))
