"""`python -m tests.bench`."""

import sys

from tests.bench.command import main

sys.exit(main(sys.argv[1:]))
