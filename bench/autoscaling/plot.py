"""Draws a trace: the load, and the replicas that each policy had for it. Plain SVG, so that it needs no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from bench.autoscaling.traces import HOUR

__all__ = ["draw"]

_WIDTH, _ROW, _LEFT, _TOP = 760, 64, 150, 34
_PLOT = _WIDTH - _LEFT - 16
_LOAD, _REPLICAS = "#b9c4d0", "#1f5fbf"

Steps = Sequence[tuple[float, int]]


def draw(title: str, worth: Sequence[float], replicas: Mapping[str, Steps], highest: int) -> str:
    """An SVG document with a row for each policy.

    Args:
        title: What it shows.
        worth: The load of each minute, in replicas' worth.
        replicas: For each policy the changes of its count: from when on it was what.
        highest: The top of each row's scale.
    """
    height = _TOP + _ROW * len(replicas) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="13">{escape(title)}</text>',
    ]
    for row, (name, steps) in enumerate(replicas.items()):
        bottom = _TOP + _ROW * (row + 1) - 8
        scale = (_ROW - 14) / highest
        parts += [
            f'<text x="8" y="{bottom - _ROW / 2 + 12:.0f}">{escape(name)}</text>',
            f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end" fill="#777">0</text>',
            f'<text x="{_LEFT - 6}" y="{bottom - highest * scale + 8:.0f}" text-anchor="end" fill="#777">{highest}</text>',
            f'<path d="{_area(worth, bottom, scale)}" fill="{_LOAD}"/>',
            f'<path d="{_line(steps, bottom, scale)}" fill="none" stroke="{_REPLICAS}" stroke-width="1.6"/>',
        ]
    parts += [
        f'<text x="{_x(minute * 60):.0f}" y="{height - 8}" text-anchor="middle" fill="#777">{minute} min</text>'
        for minute in range(0, 61, 10)
    ]
    return "\n".join([*parts, "</svg>\n"])


def _x(second: float) -> float:
    return _LEFT + _PLOT * second / HOUR


def _area(worth: Sequence[float], bottom: float, scale: float) -> str:
    width = HOUR / len(worth)
    points = [f"M{_x(0):.1f} {bottom:.1f}"]
    for index, value in enumerate(worth):
        y = bottom - value * scale
        points.append(f"L{_x(index * width):.1f} {y:.1f} L{_x((index + 1) * width):.1f} {y:.1f}")
    return " ".join([*points, f"L{_x(HOUR):.1f} {bottom:.1f} Z"])


def _line(steps: Steps, bottom: float, scale: float) -> str:
    points: list[str] = []
    for index, (second, count) in enumerate(steps):
        y = bottom - count * scale
        end = steps[index + 1][0] if index + 1 < len(steps) else HOUR
        points.append(f"{'L' if points else 'M'}{_x(second):.1f} {y:.1f} L{_x(end):.1f} {y:.1f}")
    return " ".join(points)
