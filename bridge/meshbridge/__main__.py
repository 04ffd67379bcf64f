"""`python -m meshbridge`: the command `meshbridge`."""

import sys

from meshbridge.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
