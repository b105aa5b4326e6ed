"""The command line: `osdp COMMAND`, also `python -m osdp`. `osdp --help` lists the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from osdp.cli.parser import make_parser
from osdp.errors import OSDPError

_INTERRUPTED = 130  # a shell's status of a process ended by SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0; 1 if `osdp verify` finds a false claim; 2 after one line on standard error
    if no plan fits or the input is invalid; 130 after Ctrl-C.
    """
    try:
        arguments = make_parser().parse_args(argv)
        status = arguments.command(arguments)
        sys.stdout.flush()
        return status or 0
    except (OSDPError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # `osdp explain plan.json | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"osdp: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("osdp: interrupted", file=sys.stderr)
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
