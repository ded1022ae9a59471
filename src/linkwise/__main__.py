"""`python -m linkwise` and the command `linkwise`: an interrupt while the rest is still loading is no traceback."""

import sys


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    try:
        from linkwise.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
