"""`python -m tests.money_transfer`."""

import sys

from tests.money_transfer.transfer import main

sys.exit(main())
