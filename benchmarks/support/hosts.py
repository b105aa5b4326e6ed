"""Several hosts on this machine: network namespaces on one switch, each behind a link of its own of a given rate.

Needs root and iproute2. A host sends and receives at most `rate` at once (tc tbf at both ends of its link); ranks of
one host talk over its loopback.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ADDRESS = "10.93.0.{}"
NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')  # hosts are told apart by their names
SHAPE = ("root", "tbf", "burst", "256kb", "latency", "50ms", "rate")


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, timeout=20)


@contextmanager
def hosts_apart(count: int, rate: str) -> Iterator[list[list[str]]]:
    """One command prefix per host: what is run behind it runs on that host, at ADDRESS (from 1), as eth0.

    >>> with hosts_apart(2, "1gbit") as hosts:
    ...     subprocess.run([*hosts[0], "hostname"])
    """
    switch = f"bench{os.getpid()}-switch"
    names = [f"bench{os.getpid()}-{i}" for i in range(count)]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch0", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch0", "up")
        for i, name in enumerate(names):
            port = f"port{i}"
            _ip("netns", "add", name)
            _ip("link", "add", port, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", port, "master", "switch0", "up")
            _ip("-n", name, "addr", "add", ADDRESS.format(i + 1) + "/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
            for where, device in ((switch, port), (name, "eth0")):
                command = ("tc", "-n", where, "qdisc", "add", "dev", device, *SHAPE, rate)
                subprocess.run(command, check=True, timeout=20)
        yield [["ip", "netns", "exec", name, *NAMED, name] for name in names]
    finally:
        for name in (*names, switch):
            with suppress(subprocess.SubprocessError):
                subprocess.run(("ip", "netns", "del", name), stderr=subprocess.DEVNULL, timeout=20)
