#!/usr/bin/env python3
"""Holds `kiln plan` to what `kiln bench` measures, over a grid of models, sizes, batches and modes.

    benches/plan_grid.py KILN [--device cpu|cuda] [--dtype TYPE] [--models emoji,sd15-512,sdxl-1024] [--bound 0.05]

A stage that runs alone, with its own network in memory, is that of the mode medvram; with its weights streamed it is
that of lowvram. A whole call keeps all networks, which is the mode full. On the CPU it also keeps the text encoders
here. On a GPU the measure is the peak of the pool's used memory, with the peak of its reserved memory, which the
driver allocates in units of 32 MiB. On the CPU it is the peak of the process' resident memory (VmHWM), less what `kiln plan`
itself has: code, stacks, tables. There every stage has a process of its own. Standard library alone.
"""

import argparse
import json
import subprocess
import sys

SIZES = {"emoji": [256, 512], "sd15-512": [512, 768], "sdxl-1024": [512, 1024]}
BATCHES = {"emoji": [1, 4], "sd15-512": [1, 4], "sdxl-1024": [1, 2]}
STAGES = ["text", "step", "vae"]
MIB = 2**20


def command(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def planned(stage, mode, plans):
    """The bytes that a stage takes in a mode."""
    by_mode = {}
    for plan in plans:  # of those with a part of the U-Net resident, the last has none
        by_mode[plan["mode"] if isinstance(plan["mode"], str) else "lowvram"] = plan
    total = lambda part: sum(value for value in part.values() if isinstance(value, int))
    if stage == "call":
        parts = by_mode["full"]["stages"]
        weights = max(part["weights"] for part in parts)
        return max(total({**part, "weights": weights}) for part in parts)
    return total(by_mode[mode]["stages"][STAGES.index(stage)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kiln")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--models", default="emoji")
    parser.add_argument("--stages", default="text,step,vae,call")
    parser.add_argument("--sizes", help="instead of the models' own")
    parser.add_argument("--batches", help="instead of the models' own")
    parser.add_argument("--bound", type=float, help="fails where a ratio is off by more, such as 0.1")
    given = parser.parse_args()
    where = ["--device", given.device, "--dtype", given.dtype]
    gpu = given.device.startswith("cuda")
    numbers = lambda text: [int(number) for number in text.split(",")]
    print(f"{'model':10} {'size':>5} {'batch':>5} {'stage':5} {'mode':8} {'planned':>9} {'measured':>9} {'ratio':>6}  "
          + ("reserved, MiB" if gpu else "MiB"))
    worst, count = 0.0, 0
    for model in given.models.split(","):
        for size in numbers(given.sizes) if given.sizes else SIZES[model]:
            batches = numbers(given.batches) if given.batches else BATCHES[model]
            for batch in batches:
                side = ["-W", str(size), "-H", str(size), "--batch-size", str(batch)]
                plan = command([given.kiln, "plan", model, *side, *where, "--json", "--vram-budget", "1T"])
                stages = [stage for stage in given.stages.split(",")
                          if stage in ("step", "call") or batch == batches[0]  # one text, and one image, at a time
                          and not (stage == "text" and model.startswith("sdxl"))]  # a measurement loads both encoders
                runs = [(stages, [])] if gpu else [([stage], []) for stage in stages]
                runs += [(["step"], ["--lowvram"])] if gpu and "step" in stages else []
                for stages, streaming in runs:
                    how = ["--size", f"{size}x{size}", "--batch", str(batch), "--steps", "2", "--runs", "1"]
                    how += ["--warmup", "2" if gpu else "1", *where, *streaming]
                    report = command([given.kiln, "bench", model, "--stages", ",".join(stages), *how, "--json", "-"])
                    for measured in report["models"][0]["stages"]:
                        stage = measured["stage"]
                        mode = "full" if stage == "call" else "lowvram" if streaming else "medvram"
                        expected, memory = planned(stage, mode, plan["plans"]), measured["card"]
                        found = memory["peak_used"] if gpu else report["peak_resident_bytes"] - plan["process"]
                        ratio = expected / found
                        worst, count = max(worst, abs(ratio - 1)), count + 1
                        reserved = f"  {memory['peak_reserved'] / MIB:9.1f}" if gpu else ""
                        print(f"{model:10} {size:5} {batch:5} {stage:5} {mode:8} {expected / MIB:9.1f} "
                              f"{found / MIB:9.1f} {ratio:6.3f}{reserved}", flush=True)
    print(f"{count} combinations, the worst off by {100 * worst:.1f} %")
    if given.bound is not None and worst > given.bound:
        sys.exit(1)


if __name__ == "__main__":
    main()
