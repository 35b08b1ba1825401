"""``python -m tokenlife.cli`` is the command too."""

import sys

from tokenlife.cli import main

sys.exit(main())
