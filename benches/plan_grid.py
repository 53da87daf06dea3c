#!/usr/bin/env python3
"""Holds `kiln plan` to what `kiln bench` measures, over a grid of models, sizes, batches and modes.

    benches/plan_grid.py KILN [--device cpu|cuda] [--dtype TYPE] [--models emoji,sd15-512,sdxl-1024] [--most BYTES]

Every stage runs alone, with its own network in memory, in a process of its own: that is the mode medvram. A whole call
keeps all networks: that is the mode full, in which the processor keeps the text encoders too here. On a card the
measure is the pool's: the most that was reserved, and that was in use. On the processor it is the process' most
resident memory (VmHWM) less that of a process which does nothing. Standard library alone.
"""

import argparse
import json
import os
import subprocess
import sys

SIZES = {"emoji": [128, 256, 512], "sd15-512": [256, 512, 768], "sdxl-1024": [512, 1024]}
BATCHES = {"emoji": [1, 4], "sd15-512": [1, 4], "sdxl-1024": [1, 2]}
STAGES = {"text": 0, "step": 1, "vae": 2}


def command(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def resident_of_nothing(kiln):
    """Bytes that a process has before it does anything: its code, its threads, its tables."""
    child = os.posix_spawn(kiln, [kiln, "devices"], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])
    return os.wait4(child, 0)[2].ru_maxrss * 1024


def planned(stage, plans):
    """The bytes that a stage's own process takes, and in which mode."""
    by_mode = {}
    for plan in plans:
        by_mode.setdefault(plan["mode"] if isinstance(plan["mode"], str) else "lowvram", plan)
    total = lambda part: sum(value for value in part.values() if isinstance(value, int))
    if stage == "call":
        full = by_mode["full"]["stages"]
        weights = max(part["weights"] for part in full)
        return "full", max(total({**part, "weights": weights}) for part in full)
    return "medvram", total(by_mode["medvram"]["stages"][STAGES[stage]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kiln")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--models", default="emoji")
    parser.add_argument("--stages", default="text,step,vae,call")
    parser.add_argument("--sizes", help="in the place of the models' own")
    parser.add_argument("--batches", help="in the place of the models' own")
    parser.add_argument("--bound", type=float, help="fails where a ratio is off by more, such as 0.1")
    given = parser.parse_args()
    where = ["--device", given.device, "--dtype", given.dtype]
    card = given.device.startswith("cuda")
    base = 0 if card else resident_of_nothing(given.kiln)
    print(f"{'model':10} {'size':>5} {'batch':>5} {'stage':6} {'mode':8} {'planned':>9} {'measured':>9} {'ratio':>6}"
          + ("  in use" if card else f"  MiB; a process that does nothing has {base / 2**20:.1f}"))
    worst, count = 0.0, 0
    numbers = lambda text: [int(number) for number in text.split(",")]
    for model in given.models.split(","):
        for size in numbers(given.sizes) if given.sizes else SIZES[model]:
            for batch in numbers(given.batches) if given.batches else BATCHES[model]:
                side = ["-W", str(size), "-H", str(size), "--batch-size", str(batch)]
                plan = command([given.kiln, "plan", model, *side, *where, "--json", "--vram-budget", "1T"])
                for stage in given.stages.split(","):
                    if stage in ("text", "vae") and batch != BATCHES[model][0] and not given.batches:
                        continue  # one text, and one picture, at a time
                    mode, expected = planned(stage, plan["plans"])
                    how = ["--stages", stage, "--size", f"{size}x{size}", "--batch", str(batch), "--steps", "2"]
                    runs = ["--runs", "1", "--warmup", "2" if card else "1"]
                    report = command([given.kiln, "bench", model, *how, *runs, *where, "--json", "-"])
                    memory = report["models"][0]["stages"][0]["card"]
                    measured = memory["peak_reserved"] if card else report["peak_resident_bytes"] - base
                    ratio = expected / measured
                    worst, count = max(worst, abs(ratio - 1)), count + 1
                    used = f"  {memory['peak_used'] / 2**20:.1f} {expected / memory['peak_used']:.3f}" if card else ""
                    print(f"{model:10} {size:5} {batch:5} {stage:6} {mode:8} {expected / 2**20:9.1f} "
                          f"{measured / 2**20:9.1f} {ratio:6.3f}{used}", flush=True)
    print(f"{count} combinations, the worst off by {100 * worst:.1f} %")
    if given.bound is not None and worst > given.bound:
        sys.exit(1)


if __name__ == "__main__":
    main()
