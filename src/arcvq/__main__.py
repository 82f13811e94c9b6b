"""`python -m arcvq`: the command line."""

import sys

from arcvq.cli import main

if __name__ == "__main__":
    sys.exit(main())
