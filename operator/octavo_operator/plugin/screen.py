"""How things are written on a screen: tables, ages, sizes, colour. Text in, text out."""

import re
import textwrap
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

__all__ = ["Paint", "ago", "amount", "coloured", "fields", "moment", "plain", "seconds", "size", "table", "wrapped"]

Paint = Callable[[str, str], str]
"""(text, colour) → the text as it is written."""

COLOURS = {
    "green": "32", "red": "31", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36", "dim": "2", "bold": "1",
}  # fmt: skip
WIDTH = 100
HARD_SPACE = "\N{NO-BREAK SPACE}"
UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def plain(text: str, _: str) -> str:
    """No colour."""
    return text


def coloured(text: str, colour: str) -> str:
    """Colour, for a terminal."""
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], colours: Sequence[Sequence[str]] = (), paint: Paint = plain
) -> list[str]:
    """Lines of columns, as kubectl writes them.

    Args:
        head: names of the columns.
        rows: the cells.
        colours: for each row a colour for each cell; an empty one, or none, leaves it as it is.
        paint: how a cell gets its colour.
    """
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    lines = []
    for number, cells in enumerate((head, *rows)):
        painted = colours[number - 1] if number and colours else ()
        parts = []
        for column, cell in enumerate(cells):
            text = cell.ljust(widths[column]) if column < len(cells) - 1 else cell
            colour = painted[column] if column < len(painted) else ""
            parts.append(paint(text, colour) if colour else text)
        lines.append("   ".join(parts).rstrip())
    return lines


def fields(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of `name  text`, the text wrapped below itself."""
    width = max((len(name) for name, _ in rows), default=0) + 3
    return [line for name, text in rows for line in wrapped(text, name.ljust(width), " " * width)]


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """A text in lines that fit the screen. Words stay whole, and so do commands in backticks: they are to be copied."""
    text = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", HARD_SPACE), text)
    return [
        line.rstrip().replace(HARD_SPACE, " ")
        for part in text.split("\n")
        for line in textwrap.wrap(
            part, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
        )
        or [first]
    ]


def moment(text: str) -> datetime:
    """A time as Kubernetes writes it."""
    return datetime.fromisoformat(text).astimezone(UTC)


def ago(text: str | None, now: datetime) -> str:
    """How long ago a time of Kubernetes was; a dash when it is not known."""
    return seconds((now - moment(text)).total_seconds()) if text else "-"


def seconds(span: float) -> str:
    """A span of time in one or two units: 40s, 3m20s, 5h, 12d."""
    left = max(0, int(span))
    if left < 120:
        return f"{left}s"
    if left < 600:
        return f"{left // 60}m" + (f"{left % 60}s" if left % 60 else "")
    if left < 3 * 3600:
        return f"{left // 60}m"
    return f"{left // 3600}h" if left < 2 * 86400 else f"{left // 86400}d"


def size(count: float) -> str:
    """Bytes with a unit of two or three digits."""
    for unit, name in UNITS:
        if count >= unit:
            value = count / unit
            return f"{value:.1f}".removesuffix(".0") + f" {name}" if value < 100 else f"{value:.0f} {name}"
    return f"{count:.0f} bytes"


def amount(count: float, one: str, many: str | None = None) -> str:
    """A number with its word."""
    return f"{count:,.0f} {one if count == 1 else many or one + 's'}"
