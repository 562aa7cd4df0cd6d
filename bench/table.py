#!/usr/bin/env python3
"""Turns the lines of `godwit bench --json` into the table of docs/benchmarks.md.

usage: godwit bench standby --json | bench/table.py
"""

import json
import sys

SCHEMA = "godwit.bench/1"
# What was seen over time, for bench/plot.py; and in single runs.
OTHERS = ("godwit.bench.trace/1", "godwit.bench.load/1")


def number(value):
    return "" if value is None else f"{value:g}"


def verdict(line):
    if line["value"] is None:
        return "not measured"
    if line["target"] is None:
        return ""
    return "met" if line["ok"] else "**missed**"


def main():
    print("| figure | value | unit | target | plain TCP, or control | runs | |")
    print("|---|--:|---|--:|--:|--:|---|")
    for text in sys.stdin:
        line = json.loads(text)
        if line["schema"] in OTHERS:
            continue
        if line["schema"] != SCHEMA:
            sys.exit(f"unknown schema {line['schema']!r}")
        cells = (
            f"`{line['figure']}`",
            number(line["value"]),
            line["unit"],
            number(line["target"]),
            number(line["control"]),
            str(line["runs"]),
            verdict(line),
        )
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
