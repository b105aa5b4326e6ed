"""The command line: `osdp COMMAND`, also `python -m osdp`. `osdp --help` lists the commands."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence

from osdp.cli.parser import make_parser
from osdp.errors import OSDPError

_DEFECT = 70  # EX_SOFTWARE of sysexits.h; Python's own status for a traceback, 1, means a false claim here
_INTERRUPTED = 130  # a shell's status of a process ended by SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0; 1 if `osdp verify` finds a false claim; 2 after one line on standard error
    if no plan fits or the input is invalid; 70 after the traceback of any other error; 130 after Ctrl-C.
    """
    # A name that the terminal's encoding lacks is written in escapes.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if not (sys.argv[1:] if argv is None else argv):
            make_parser().print_help()
            return 0
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
    except Exception:
        traceback.print_exc()
        return _DEFECT


if __name__ == "__main__":
    sys.exit(main())
