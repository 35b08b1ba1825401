"""Run the command: ``python -m tokenlife.publish``."""

from tokenlife.publish.command import main

raise SystemExit(main())
