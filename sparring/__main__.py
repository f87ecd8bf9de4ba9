"""`python -m sparring` is the `sparring` command."""

from __future__ import annotations

import sys

from sparring.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
