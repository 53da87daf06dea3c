"""The command line and the report of a peer that PyTorch loads: `main` measures stages and prints JSON of the form of `kiln bench
--json -`.

With `--turns` the process prepares its stages once, so that several programs can take turns without compiling again: it prints a
line `{"ready": STAGES}`, and for each line of stages on its standard input it measures them and prints a report as one line.
"""

import argparse
import json
import math
import resource
import statistics
import sys
import time

import torch

import compare

PRESETS = compare.ROOT / "crates/models/src/presets"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def timed(run, options: argparse.Namespace, count: int) -> list[float]:
    """Seconds of `count` runs after `--warmup` that do not count."""
    runs = []
    for i in range(options.warmup + count):
        start = time.perf_counter()
        run()
        if options.device.startswith("cuda"):
            torch.cuda.synchronize()
        if i >= options.warmup:
            runs.append(time.perf_counter() - start)
    return runs


def measured(stage: str, run, load_seconds: float, options: argparse.Namespace) -> dict:
    runs = timed(run, options, options.runs)
    seconds = {"median": statistics.median(runs), "min": min(runs), "max": max(runs)}
    return {"stage": stage, "load_seconds": load_seconds, "seconds": seconds, "runs": runs}


def prepared(stage: str, stages: dict, preset: dict, options: argparse.Namespace) -> tuple:
    """The function that runs a stage, and the seconds until it was there."""
    start = time.perf_counter()
    return stages[stage](preset, options), time.perf_counter() - start


def take_turns(stages: list[str], all_stages: dict, preset: dict, options: argparse.Namespace, report) -> None:
    """The loop of `--turns`. A stage that fails, or that others left no time for, is left out, and standard error says so."""
    start, runs = time.monotonic(), {}
    for stage in stages:
        if time.monotonic() - start > options.ready_by:
            print(f"{stage}: not prepared within {options.ready_by:.0f} s", file=sys.stderr, flush=True)
            continue
        try:
            runs[stage] = prepared(stage, all_stages, preset, options)
            timed(runs[stage][0], options, 1)
        except Exception as error:  # the other stages are measured
            runs.pop(stage, None)
            print(f"{stage}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    print(json.dumps({"ready": list(runs)}), flush=True)
    for line in sys.stdin:
        wanted = [stage for stage in line.strip().split(",") if stage in runs]
        print(json.dumps(report([measured(stage, *runs[stage], options) for stage in wanted])), flush=True)


def main(engine: str, version: str, description: str, all_stages: dict, arguments=None) -> None:
    """Measures the stages that the command line names out of `all_stages`, each a function from a preset and the options to a
    function that runs it, and prints the report. `arguments` adds an engine's own arguments to the parser."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="emoji", choices=sorted(path.stem for path in PRESETS.glob("*.json")))
    parser.add_argument("--stages", default="step,vae,text")
    parser.add_argument("--dtype", default="f32", choices=DTYPES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="compiles the networks: a warm-up of 3 or more is needed")
    parser.add_argument("--turns", action="store_true", help="measures on demand, see above")
    parser.add_argument("--ready-by", type=float, default=math.inf, help="seconds after which --turns prepares no further stage")
    parser.add_argument("--size", help="WxH; default: the model's")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="of a call")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    if arguments:
        arguments(parser)
    options = parser.parse_args()
    stages = options.stages.split(",")
    if not set(stages) <= set(all_stages) or min(options.runs, options.batch) < 1:
        parser.error(f"expected --stages out of {','.join(all_stages)}, --runs and --batch of at least 1")
    if options.threads:
        torch.set_num_threads(options.threads)
    options.torch_dtype = DTYPES[options.dtype]
    preset = json.loads((PRESETS / f"{options.config}.json").read_text())
    if options.size:
        preset["width"], preset["height"] = (int(side) for side in options.size.split("x"))
    torch.manual_seed(0)
    options.networks = {}
    on_gpu = options.device.startswith("cuda")

    def report(measurements: list[dict]) -> dict:
        return {
            "engine": engine,
            "version": version,
            "commit": None,
            "machine": {
                "processor": compare.cpu_name(),
                "threads": torch.get_num_threads(),
                "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            },
            "dtype": options.dtype,
            "warmup": options.warmup,
            "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "models": [
                {
                    "name": options.config,
                    "width": preset["width"],
                    "height": preset["height"],
                    "batch": options.batch,
                    "stages": measurements,
                }
            ],
        }

    with torch.inference_mode():
        if options.turns:
            return take_turns(stages, all_stages, preset, options, report)
        measurements = [measured(stage, *prepared(stage, all_stages, preset, options), options) for stage in stages]
    json.dump(report(measurements), sys.stdout, indent=2)
    print()
