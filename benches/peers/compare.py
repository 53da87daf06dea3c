"""Kiln and other engines: the same stages with the same sizes, alternating, and a Markdown table of medians and ratios.

    cargo build --release
    (cd benches/peers/candle && cargo build --release)
    python benches/peers/compare.py --config sd15-512 --dtype f32 --rounds 5

Every round runs each engine once, in a process of its own, one after another; the order turns with the rounds, so that
a machine that slows down or is busy for a while slows all of them. Ratios are of medians: over 1, Kiln is faster.
The Python that runs this file needs requirements.txt.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STAGES = ["step", "control-step", "vae", "vae-encode", "upscale", "text", "call"]
ENGINES = ["kiln", "kiln-int8", "diffusers", "openvino", "openvino-int8", "candle"]
# Engines that run where they are named alone: they need more than requirements.txt.
USUAL = ["kiln", "diffusers", "candle"]


def command(engine: str, options: argparse.Namespace) -> list[str]:
    flags = ["--dtype", options.dtype, "--batch", str(options.batch), "--stages", options.stages]
    if "call" in options.stages.split(",") and engine != "candle":
        flags += ["--steps", str(options.steps)]
    flags += ["--runs", str(options.runs), "--warmup", str(options.warmup)]
    device = ["--device", options.device]
    if options.size:
        flags += ["--size", options.size]
    threads = ["--threads", str(options.threads)] if options.threads else []
    engine, _, compute = engine.partition("-")
    compute = ["--compute", compute] if compute else []
    if engine == "kiln":
        return [str(options.kiln), "bench", options.config, "--json", "-", *flags, *device, *threads, *compute]
    if engine == "diffusers":
        return [sys.executable, str(HERE / "diffusers_bench.py"), "--config", options.config, *flags, *device, *threads]
    if engine == "openvino":
        models = ["--models", str(options.openvino_models)] if options.openvino_models else []
        script = [str(options.openvino), str(HERE / "openvino_bench.py"), "--config", options.config]
        return [*script, *flags, *threads, *compute, *models]
    return [str(options.candle), *flags]


def run(
    engine: str, options: argparse.Namespace, limits: dict[str, str] | None = None, timeout: float | None = None
) -> dict | None:
    """One report, or None where the engine failed or took longer than `timeout` seconds: a peer that cannot run a configuration
    is no reason to stop. `limits` are variables of its environment."""
    environment = {**os.environ, **(limits or {})}
    if options.threads:
        environment["RAYON_NUM_THREADS"] = str(options.threads)
    try:
        call = command(engine, options)
        done = subprocess.run(call, env=environment, capture_output=True, text=True, check=True, timeout=timeout)
    except FileNotFoundError as error:
        print(f"{engine}: {error.filename} does not exist; build it first", file=sys.stderr)
        return None
    except subprocess.TimeoutExpired:
        print(f"{engine}: not done after {timeout:.0f} s", file=sys.stderr)
        return None
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or ["no message"]
        print(f"{engine}: exit status {error.returncode}: {last[0]}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "CPU")


def busy_seconds() -> float:
    """CPU time of all programs since the machine started, where Linux counts it."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system = (int(field) for field in fields[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(reports: dict[str, list[dict]], options: argparse.Namespace) -> str:
    lines = ["| stage | engine | median s | min s | max s | ratio to Kiln | peak GiB |", f"|{'---|' * 7}"]
    for stage in options.stages.split(","):
        kiln = None
        for engine, rounds in reports.items():
            found = [s for report in rounds for s in report["models"][0]["stages"] if s["stage"] == stage]
            seconds = [value for one in found for value in one["runs"]]
            if not seconds:
                continue
            median = statistics.median(seconds)
            kiln = median if engine == "kiln" else kiln
            ratio = f"{median / kiln:.2f}" if kiln else ""
            peaks = [report["peak_resident_bytes"] or 0 for report in rounds]
            cells = [stage, engine, f"{median:.4g}", f"{min(seconds):.4g}", f"{max(seconds):.4g}", ratio]
            lines.append(f"| {' | '.join(cells)} | {max(peaks) / 2**30:.2f} |")
    return "\n".join(lines)


def heading(reports: dict[str, list[dict]], options: argparse.Namespace) -> str:
    first = [rounds[0] for rounds in reports.values() if rounds]
    machine = first[0]["machine"]
    versions = ", ".join(f"{engine} {rounds[0]['version']}" for engine, rounds in reports.items() if rounds)
    place = machine["processor"] if machine["device"] == "cpu" else machine["device"]
    return (
        f"{options.config}, {options.dtype}, batch {options.batch}, {place}, {machine['threads']} threads; "
        f"{options.rounds} rounds of {options.runs} runs in turns; {versions}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="emoji", choices=["emoji", "sd15-512", "sdxl-1024", "sd-turbo"])
    parser.add_argument("--stages", default="step,vae,text")
    parser.add_argument("--engines", default=",".join(USUAL), help="out of " + ",".join(ENGINES))
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16", "f16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", help="WxH; default: the model's. candle has its own alone")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="of a call")
    parser.add_argument("--openvino", type=Path, default=sys.executable, help="the Python that has OpenVINO")
    parser.add_argument(
        "--models", dest="openvino_models", type=Path, help="a folder that keeps OpenVINO's converted models for later calls"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=1, help="measured runs of every stage in a round")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--kiln", type=Path, default=ROOT / "target/release/kiln")
    parser.add_argument("--candle", type=Path, default=HERE / "candle/target/release/candle-bench")
    parser.add_argument("--json", type=Path, help="writes every report to this file")
    options = parser.parse_args()
    engines = options.engines.split(",")
    if unknown := set(engines) - set(ENGINES):
        parser.error(f"--engines {','.join(sorted(unknown))}: expected {', '.join(ENGINES)}")
    if unknown := set(options.stages.split(",")) - set(STAGES):
        parser.error(f"--stages {','.join(sorted(unknown))}: expected {', '.join(STAGES)}")
    has_candle = options.config == "sd15-512" and options.device == "cpu" and not options.size
    has_candle = has_candle and set(options.stages.split(",")) & {"step", "vae"}
    if "candle" in engines and not has_candle:
        print("candle: left out, its counterpart is sd15-512 on the CPU alone, step and vae", file=sys.stderr)
        engines.remove("candle")

    reports: dict[str, list[dict]] = {engine: [] for engine in ENGINES if engine in engines}
    failed = set()
    start, busy, own = time.monotonic(), busy_seconds(), own_seconds()
    for i in range(options.rounds):
        turn = i % len(engines)
        for engine in engines[turn:] + engines[:turn]:
            if engine in failed:
                continue
            print(f"round {i + 1} of {options.rounds}: {engine}", file=sys.stderr)
            report = run(engine, options)
            if report is None:
                failed.add(engine)
            else:
                reports[engine].append(report)
    if options.json:
        options.json.write_text(json.dumps(reports, indent=2) + "\n")
    if not any(reports.values()):
        sys.exit("no engine ran")
    cores = (time.monotonic() - start) * os.cpu_count()
    others = max(busy_seconds() - busy - (own_seconds() - own), 0.0) / cores
    print(heading(reports, options), end="\n\n")
    print(table(reports, options))
    print(f"\nOther programs took {others:.0%} of the CPU in the meantime{'; measure again' if others > 0.1 else ''}.")
    if failed:
        sys.exit(f"failed: {', '.join(sorted(failed))}")


if __name__ == "__main__":
    main()
