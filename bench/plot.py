#!/usr/bin/env python3
"""Draws Figures 6 and 7 of the M-TCP paper from the lines of `godwit bench migrate --json`.

usage: bench/plot.py FOLDER < bench/migrate.jsonl

Writes migrate-time.svg and migrate-stream.svg to FOLDER. Needs nothing but Python.
"""

import json
import math
import pathlib
import sys
from html import escape

FIGURE, TRACE = "godwit.bench/1", "godwit.bench.trace/1"

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 40, 52

# Told apart by people who do not see all colours, and by their dashes.
STYLES = [
    ("#0072b2", ""),
    ("#d55e00", "7 3"),
    ("#009e73", "2 3"),
    ("#cc79a7", "8 3 2 3"),
    ("#555555", "1 2"),
]

SIZES = {"0k": 0, "2k": 2, "10k": 10, "16k": 16}
PATHS = {"0us": "no delay", "150us": "150 µs delay"}
# Section 5 of the paper: 387 µs at a round trip of 150 µs, an empty snapshot.
PAPER = (0, 0.387)

STREAMS = [
    ("healthy", "never slows"),
    ("2k", "moves, 2 KB"),
    ("10k", "moves, 10 KB"),
    ("16k", "moves, 16 KB"),
    ("stays", "stays"),
]


def ticks(most):
    """Four to seven round steps from 0 to `most` or beyond it."""
    unit = 10.0 ** math.floor(math.log10(most))
    step = next(unit * part for part in (0.2, 0.5, 1, 2) if most <= 7 * unit * part)
    return [step * i for i in range(math.ceil(most / step) + 1)]


class Chart:
    def __init__(self, title, xlabel, ylabel, xs, ys):
        self.xs, self.ys = xs, ys
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="13" fill="#222">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
            f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath>',
        ]
        self.text(LEFT, 22, title, weight="bold")
        for x in xs:
            at = self.x(x)
            self.rule(at, TOP, at, HEIGHT - BOTTOM)
            self.text(at, HEIGHT - BOTTOM + 18, f"{x:g}", anchor="middle")
        for y in ys:
            at = self.y(y)
            self.rule(LEFT, at, WIDTH - RIGHT, at)
            self.text(LEFT - 8, at + 4, f"{y:g}", anchor="end")
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, xlabel, anchor="middle")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        self.text(16, middle, ylabel, anchor="middle", turn=True)
        self.free = TOP + 10

    def x(self, value):
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.xs[-1]

    def y(self, value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.ys[-1]

    def rule(self, *ends):
        ends = " ".join(f'{k}="{v:.1f}"' for k, v in zip(("x1", "y1", "x2", "y2"), ends))
        self.parts.append(f'<line {ends} stroke="#ddd"/>')

    def text(self, x, y, words, anchor="start", weight="normal", turn=False):
        turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
            f"{turned}>{escape(words)}</text>"
        )

    def line(self, name, points, style, dots=False):
        colour, dashes = style
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" '
            f'stroke-dasharray="{dashes}" clip-path="url(#inside)"/>'
        )
        if dots:
            self.dots(points, colour)
        at = WIDTH - RIGHT + 12
        self.parts.append(
            f'<line x1="{at}" y1="{self.free - 4}" x2="{at + 22}" y2="{self.free - 4}" '
            f'stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dashes}"/>'
        )
        self.text(at + 28, self.free, name)
        self.free += 20

    def dots(self, points, colour):
        for x, y in points:
            self.parts.append(
                f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3" fill="{colour}"/>'
            )

    def mark(self, name, point):
        self.dots([point], "#222")
        at = WIDTH - RIGHT + 23
        self.parts.append(f'<circle cx="{at}" cy="{self.free - 4}" r="3" fill="#222"/>')
        self.text(at + 17, self.free, name)
        self.free += 20

    def write(self, path):
        path.write_text("\n".join([*self.parts, "</svg>"]) + "\n", encoding="utf-8")


def time_by_size(figures, path):
    """Figure 6: how long a move takes, against the size of the snapshot."""
    series = []
    for delay, words in PATHS.items():
        names = {size: f"migrate.first_data.{delay}.{size}.p50" for size in SIZES}
        points = [(SIZES[size], figures.get(name)) for size, name in names.items()]
        points = [(x, y) for x, y in points if y is not None]
        if len(points) > 1:
            series.append((words, points))
    if not series:
        sys.exit("no migrate.first_data.* in these lines")
    most = max(y for _, points in series for _, y in points)
    chart = Chart(
        "From the order to the first byte of the new server",
        "size of the snapshot, KB",
        "milliseconds",
        [0, 2, 4, 6, 8, 10, 12, 14, 16],
        ticks(most),
    )
    for (name, points), style in zip(series, STYLES):
        chart.line(name, points, style, dots=True)
    chart.mark("M-TCP (paper)", PAPER)
    chart.write(path)


def bytes_by_time(traces, path):
    """Figure 7: what has come of a stream whose servers slow down after 32 KB."""
    known = [(words, traces.get(f"migrate.slowing.{name}")) for name, words in STREAMS]
    known = [(words, points) for words, points in known if points]
    if not known:
        sys.exit("no traces in these lines")
    ends = sorted(points[-1][0] for _, points in known)
    # The one that stays takes so long that it would leave the others no room.
    most = 1.5 * ends[-2] if len(ends) > 1 else ends[0]
    chart = Chart(
        "A stream of 256 KB whose servers slow down after 32 KB",
        "milliseconds",
        "KB received",
        ticks(most),
        [0, 32, 64, 96, 128, 160, 192, 224, 256],
    )
    for (words, points), style in zip(known, STYLES):
        end = points[-1][0]
        if end > chart.xs[-1]:
            words += f" ({end / 1e3:.1f} s)"
        chart.line(words, [(0, 0), *((ms, size / 1024) for ms, size in points)], style)
    chart.write(path)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    figures, traces = {}, {}
    for text in sys.stdin:
        line = json.loads(text)
        if line["schema"] == FIGURE:
            figures[line["figure"]] = line["value"]
        elif line["schema"] == TRACE:
            traces[line["trace"]] = line["points"]
        else:
            sys.exit(f"unknown schema {line['schema']!r}")
    time_by_size(figures, folder / "migrate-time.svg")
    bytes_by_time(traces, folder / "migrate-stream.svg")


if __name__ == "__main__":
    main()
