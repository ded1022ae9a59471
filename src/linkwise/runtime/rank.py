"""The program of a rank's process. It leaves without taking the interpreter apart: everything is written by then, and
freeing what torch has loaded takes about a second of processor time per rank, which a unit that stops would wait for.
"""

import gc
import os
import sys


def program() -> int:
    """Be a rank until told to quit; returns the exit code."""
    # Loading torch makes a million objects and no garbage: looking for some all the while takes a quarter of the time.
    gc.disable()
    from linkwise.runtime.built import Home
    from linkwise.runtime.worker import main

    gc.freeze()
    gc.enable()
    try:
        return main(Home)
    except SystemExit as left:  # as a command line does it
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        sys.stderr.write(f"{left.code}\n")
        return 1


if __name__ == "__main__":
    code = program()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
