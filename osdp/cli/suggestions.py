"""The command line's parser, which suggests what a mistyped option, command or choice may have meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import NoReturn

from osdp.base.names import did_you_mean


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(message + _suggestion(message, list(_options(self))))


def _suggestion(message: str, options: list[str]) -> str:
    """ "; did you mean '--memory'?" for a message of argparse; "" where nothing is near."""
    if unknown := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
        return did_you_mean(unknown[1], options)
    if wrong := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
        return did_you_mean(wrong[1], re.findall(r"[\w.-]+", wrong[2]))
    return ""


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Of the parser and of its commands, which report options that they do not know to it."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)
