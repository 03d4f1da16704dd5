"""Pieces of command lines: options in sections, quantities, lengths, numbers."""

from __future__ import annotations

import math
import re
from typing import Any

import click

__all__ = ["AutoInt", "Count", "Number", "Quantity", "SectionedCommand", "SectionedOption"]

_MOST = 2**31 - 1
"""Of what is counted. Whoever writes more has slipped, and the engine's messages end at 64 bits."""
_MOST_BYTES = 2**63 - 1

_SUFFIXES = {
    "": 1,
    **{suffix: 1000**power for power, suffix in enumerate(("k", "M", "G", "T"), start=1)},
    **{suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)},
}


class SectionedOption(click.Option):
    """An option that stands under a heading of the help page."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help page has its options under their headings, in order of first use."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Quantity(click.ParamType[int]):
    """Bytes, plainly or as a Kubernetes quantity: 4294967296, 4Gi, 1.5Gi, 500M.

    Args:
        or_none: Whether 0 is an amount, too.
    """

    name = "quantity"

    def __init__(self, *, or_none: bool = False) -> None:
        self._or_none = or_none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", str(value).strip())
        if match is None or match[2] not in _SUFFIXES:
            self.fail(f"{value!r} is no amount of bytes; write it as 4294967296, 4Gi, 512Mi or 4G", param, ctx)
        size = int(float(match[1]) * _SUFFIXES[match[2]]) if "." in match[1] else int(match[1]) * _SUFFIXES[match[2]]
        if size == 0 and not self._or_none:
            self.fail(f"{value!r} is nothing at all", param, ctx)
        if size > _MOST_BYTES:
            self.fail(f"{value!r} is more than 8 EiB", param, ctx)
        return size


class AutoInt(click.ParamType[int | None]):
    """A positive number, or `auto`, which becomes None."""

    name = "n|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Returns the number, or None."""
        if value in (None, "auto"):
            return None
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            self.fail(f"{value!r} is neither a positive number nor auto", param, ctx)
        if number > _MOST:
            self.fail(f"{value!r} is more than {_MOST}", param, ctx)
        return number


class Count(click.IntRange):
    """A whole number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the number."""
        number: int = super().convert(value, param, ctx)
        if number > _MOST:
            self.fail(f"{value!r} is more than {_MOST}", param, ctx)
        return number


class Number(click.FloatRange):
    """A number, which `nan` is not: it would pass every comparison."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number
