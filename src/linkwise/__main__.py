"""`python -m linkwise` is the command `linkwise`."""

import sys

from linkwise.cli import main

sys.exit(main())
