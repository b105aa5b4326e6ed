"""The command line's parser, which suggests what a mistyped option, command or choice may have meant."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(message + _suggestion(message, list(_options(self))))


def _suggestion(message: str, options: list[str]) -> str:
    """ "; did you mean '--memory'?" for a message of argparse; "" where nothing is near."""
    if unknown := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
        near = difflib.get_close_matches(unknown[1], options, n=1)
    elif wrong := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
        near = difflib.get_close_matches(wrong[1], re.findall(r"[\w.-]+", wrong[2]), n=1)
    else:
        return ""
    return f"; did you mean {near[0]!r}?" if near else ""


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Of the parser and of its commands, which report options that they do not know to it."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)
