"""``python -m gradwright`` is the same command as ``gradwright``."""

import sys

from gradwright.cli import main

if __name__ == "__main__":
    sys.exit(main())
