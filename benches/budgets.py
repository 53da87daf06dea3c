#!/usr/bin/env python3
"""Runs one command of kiln under several budgets of GPU memory, and prints what was planned and what it took.

    benches/budgets.py KILN --budgets 3G,4G,6G,8G,12G,16G,24G -- txt2img "a fox" -m FOLDER/transformer.safetensors ..

A budget is a hard limit of the memory that kiln takes for tensors (`--vram-budget`), so that a row that ran needs no more. Steps are
the mean of a call's. Standard library alone.
"""

import argparse
import re
import subprocess
import sys
import time

COLUMNS = ["VRAM", "mode", "plan, MiB", "peak, MiB", "peak / plan", "copied in a step", "step, s", "call, s"]
UNITS = {"B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 2**10}


def mib(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


def first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found and found.group(1)


def row(kiln: str, budget: str, command: list[str]) -> list[str]:
    start = time.monotonic()
    done = subprocess.run([kiln, *command, "--vram-budget", budget, "-vv"], capture_output=True, text=True)
    took = time.monotonic() - start
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("error: ")), done.stderr[-200:])
        return [budget, reason, *[""] * (len(COLUMNS) - 2)]
    plan = first(r"plan mode=.*?peak=([\d.]+ [KMG]?i?B)", done.stderr)
    mode = first(r"plan mode=(.*?) tiling=", done.stderr) or "?"
    copied = first(r"copied_per_step=([\d.]+ [KMG]?i?B)", done.stderr) or "?"
    peak = max((int(value) for value in re.findall(r"peak_used=(\d+)", done.stderr)), default=0)
    step = first(r"([\d.]+ m?s) each", done.stderr) or "?"
    planned = mib(plan) if plan else 0
    ratio = f"{peak / planned:.3f}" if planned else "?"
    return [budget, mode, f"{planned:.0f}", str(peak), ratio, copied, step, f"{took:.1f}"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("kiln")
    arguments.add_argument("--budgets", default="4G,6G,8G,12G,16G,24G")
    if "--" not in sys.argv:
        arguments.error("the command follows after --")
    at = sys.argv.index("--")
    options, command = arguments.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    print("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS))
    for budget in options.budgets.split(","):
        print("| " + " | ".join(row(options.kiln, budget, command)) + " |", flush=True)


if __name__ == "__main__":
    main()
