"""The figures of docs/performance.md's summary and of the README's chart: Kiln and its peers in turns, on a GPU or on the CPU.

    python benches/peers/summary.py --json gpu.json --minutes 6
    python benches/peers/summary.py --cpu --threads 2,16 --dtypes bf16,f32 --json cpu.json
    python benches/peers/summary.py --from gpu.json --chart benches/speed.json

On a GPU the peers are prepared once, all at the same time, which takes most of the minutes where `torch.compile` is one of them; then
every round measures each engine once, one after another. On the CPU each measurement is a process of its own. The order turns with
the rounds. What was measured is written to `--json` after each measurement, and later calls add to it. At the end the tables are
printed, and what was left out: engines that failed, and measurements for which `--minutes` left no time. `--from` prints the tables
of files and measures nothing. `cargo xtask chart` draws what `--chart` has written.

Engines on a GPU: kiln, kiln-fp8 (steps and calls alone), diffusers-compiled, diffusers. Engines on the CPU: kiln, kiln-int8,
diffusers, openvino, openvino-int8 (those of OpenVINO where it is installed). The Python that runs this file needs requirements.txt.
"""

import argparse
import datetime
import importlib.util
import json
import select
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import compare
import summary_table

ON_GPU = ["kiln", "kiln-fp8", "diffusers-compiled", "diffusers"]
ON_CPU = ["kiln", "kiln-int8", "diffusers", "openvino", "openvino-int8"]
# Stages of engines that do not change the others.
ONLY = {"kiln-fp8": ["step", "call"]}
# The part of the minutes within which peers prepare stages.
PREPARATION = 0.6


class Prepared:
    """diffusers on a GPU: one process that keeps its networks (`diffusers_bench.py --turns`)."""

    def __init__(self, engine: str, model: str, options: argparse.Namespace):
        self.name, self.ready = f"{engine}, {model}", []
        call = [sys.executable, str(compare.HERE / "diffusers_bench.py"), "--turns", "--config", model]
        call += ["--device", options.device, "--dtype", options.dtypes[0], "--stages", ",".join(options.stages)]
        call += ["--steps", str(options.steps), "--runs", str(options.runs), "--warmup", str(options.warmup)]
        call += ["--ready-by", str(options.minutes * 60 * PREPARATION * 0.8)]
        call += ["--compile"] if engine == "diffusers-compiled" else []
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)

    def line(self, deadline: float) -> dict | None:
        """The next line of the process, or None where it ended or did not write one before the deadline."""
        readable, _, _ = select.select([self.process.stdout], [], [], max(deadline - time.monotonic(), 0.0))
        text = self.process.stdout.readline() if readable else ""
        return json.loads(text) if text else None

    def wait(self, deadline: float) -> None:
        """Waits until the process has prepared its stages."""
        self.ready = (self.line(deadline) or {}).get("ready", [])

    def measure(self, stages: list[str], deadline: float) -> dict | None:
        try:
            self.process.stdin.write(",".join(stages) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self.line(deadline)

    def said(self) -> str:
        """The last line of its standard error."""
        self.log.seek(0)
        return (self.log.read().strip().splitlines() or ["no message"])[-1]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Measurement:
    """The file of what is measured, the time that is left, and what was left out."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.start = options, time.monotonic()
        self.deadline = self.start + options.minutes * 60
        self.entries = json.loads(options.json.read_text()) if options.json.exists() else []
        self.left_out: dict[str, str] = {}
        self.longest: dict[str, float] = {}
        self.device, self.driver = gpu(options.device) if not options.cpu else (compare.cpu_name(), None)

    def leave_out(self, what: str, why: str) -> None:
        self.left_out.setdefault(what, why)
        print(f"left out: {what}: {why}", file=sys.stderr, flush=True)

    def turn(self, what: str, round_: int, engine: str, measure) -> None:
        """One measurement, unless it failed before or the time is short."""
        if what in self.left_out:
            return
        if time.monotonic() + self.longest.get(what, 0.0) > self.deadline:
            return self.leave_out(f"{what}, from round {round_ + 1} on", "no time is left")
        start = time.monotonic()
        print(f"{start - self.start:.0f} s: round {round_ + 1} of {self.options.rounds}: {what}", file=sys.stderr, flush=True)
        report = measure()
        self.longest[what] = max(self.longest.get(what, 0.0), time.monotonic() - start)
        if report is None:
            return self.leave_out(what, "it failed")
        self.entries += self.rows(report, engine)
        self.options.json.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in self.entries) + "\n]\n")

    def rows(self, report: dict, engine: str) -> list[dict]:
        model = report["models"][0]
        commit = self.options.commit or report["commit"] if engine.startswith("kiln") else None
        of_run = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "device": self.device,
            "driver": self.driver,
            "threads": report["machine"]["threads"] if self.options.cpu else None,
            "engine": engine,
            "version": report["version"],
            "commit": commit,
            "dtype": report["dtype"],
            "steps": self.options.steps,
            "model": model["name"],
        }
        return [{**of_run, "stage": stage["stage"], "runs": stage["runs"]} for stage in model["stages"]]


def gpu(device: str) -> tuple[str, str]:
    """The name of a GPU and the driver's version."""
    index = device.partition(":")[2] or "0"
    query = ["nvidia-smi", f"--id={index}", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, _, driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().partition(", ")
    return name, driver


def kiln_or_peer(engine: str, model: str, dtype: str, threads: int | None, options: argparse.Namespace, deadline: float):
    """One process of an engine, as compare.py runs it."""
    stages = ",".join(stage for stage in options.stages if stage in ONLY.get(engine, options.stages))
    of_run = {**vars(options), "config": model, "stages": stages, "dtype": dtype, "threads": threads, "size": None, "batch": 1}
    return compare.run(engine, argparse.Namespace(**of_run), timeout=max(deadline - time.monotonic(), 1.0))


def rotated(engines: list[str], round_: int) -> list[str]:
    turn = round_ % len(engines)
    return engines[turn:] + engines[:turn]


def on_gpu(measurement: Measurement, options: argparse.Namespace) -> None:
    peers = {}
    try:
        for model in options.models:
            for engine in options.engines:
                if not engine.startswith("kiln"):
                    peers[engine, model] = Prepared(engine, model, options)
        ready_by = measurement.start + options.minutes * 60 * PREPARATION
        for peer in peers.values():
            peer.wait(ready_by)
            if missing := [stage for stage in options.stages if stage not in peer.ready]:
                measurement.leave_out(f"{peer.name}, {','.join(missing)}", f"not prepared: {peer.said()}")
            if not peer.ready:
                peer.close()
        for round_ in range(options.rounds):
            for model in options.models:
                for engine in rotated(options.engines, round_):
                    peer = peers.get((engine, model))
                    if peer is None:
                        measure = partial(kiln_or_peer, engine, model, options.dtypes[0], None, options, measurement.deadline)
                    elif peer.ready:
                        measure = partial(peer.measure, peer.ready, measurement.deadline)
                    else:
                        continue
                    measurement.turn(f"{engine}, {model}", round_, engine, measure)
    finally:
        for peer in peers.values():
            peer.close()


def on_cpu(measurement: Measurement, options: argparse.Namespace) -> None:
    engines = options.engines
    if not importlib.util.find_spec("openvino") and options.openvino == Path(sys.executable):
        for engine in [engine for engine in engines if engine.startswith("openvino")]:
            measurement.leave_out(engine, "OpenVINO is not installed")
        engines = [engine for engine in engines if not engine.startswith("openvino")]
    for round_ in range(options.rounds):
        for model in options.models:
            for threads in options.threads:
                for dtype in options.dtypes:
                    for engine in rotated(engines, round_):
                        measure = partial(kiln_or_peer, engine, model, dtype, threads, options, measurement.deadline)
                        measurement.turn(f"{engine}, {model}, {dtype}, {threads} threads", round_, engine, measure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = {"type": lambda text: [word for word in text.split(",") if word]}
    parser.add_argument("--cpu", action="store_true", help="measures the CPU, not a GPU")
    parser.add_argument("--device", help="default: cuda:0, or cpu with --cpu")
    parser.add_argument("--models", **words, help="default: sd15-512,sdxl-1024, on the CPU sd15-512")
    parser.add_argument("--stages", **words, help="default: step,vae,text,call, on the CPU step,vae,text")
    parser.add_argument("--engines", **words, help=f"default: {','.join(ON_GPU)}, on the CPU kiln,diffusers,openvino")
    parser.add_argument("--dtypes", **words, help="default: f16, on the CPU bf16,f32; a GPU is measured in the first alone")
    parser.add_argument("--threads", type=lambda text: [int(word) for word in text.split(",")], help="of the CPU, default 2")
    parser.add_argument("--minutes", type=float, default=6.0, help="of everything; what does not fit is left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, help="measured runs of a stage in a round; default: 5, on the CPU 2")
    parser.add_argument("--warmup", type=int, help="runs of a stage that do not count; default: 3, on the CPU 1")
    parser.add_argument("--steps", type=int, default=20, help="of a call")
    parser.add_argument("--commit", help="Kiln's commit, where the build does not know it")
    parser.add_argument("--kiln", type=Path, default=compare.ROOT / "target/release/kiln")
    parser.add_argument("--openvino", type=Path, default=Path(sys.executable), help="the Python that has OpenVINO")
    parser.add_argument("--openvino-models", type=Path, help="a folder that keeps OpenVINO's converted models for later calls")
    parser.add_argument("--json", type=Path, default=Path("summary.json"), help="what is measured; later calls add to it")
    parser.add_argument("--chart", type=Path, help="writes the medians of steps and calls on a GPU to this file")
    parser.add_argument("--from", dest="files", type=Path, nargs="+", help="prints the tables of these files, measures nothing")
    options = parser.parse_args()
    if options.files:
        entries = [entry for file in options.files for entry in json.loads(file.read_text())]
        left_out = {}
    else:
        usual = ["kiln", "diffusers", "openvino"] if options.cpu else ON_GPU
        options.engines = options.engines or usual
        if unknown := set(options.engines) - set(ON_CPU if options.cpu else ON_GPU):
            parser.error(f"--engines {','.join(sorted(unknown))}: expected {', '.join(ON_CPU if options.cpu else ON_GPU)}")
        options.device = options.device or ("cpu" if options.cpu else "cuda:0")
        options.models = options.models or (["sd15-512"] if options.cpu else ["sd15-512", "sdxl-1024"])
        options.stages = options.stages or (["step", "vae", "text"] if options.cpu else ["step", "vae", "text", "call"])
        options.dtypes = options.dtypes or (["bf16", "f32"] if options.cpu else ["f16"])
        options.threads = options.threads or [2]
        options.runs = options.runs or (2 if options.cpu else 5)
        options.warmup = options.warmup if options.warmup is not None else (1 if options.cpu else 3)
        measurement = Measurement(options)
        (on_cpu if options.cpu else on_gpu)(measurement, options)
        entries, left_out = measurement.entries, measurement.left_out
    print(summary_table.tables(entries))
    for what, why in left_out.items():
        print(f"Left out: {what}: {why}.")
    if options.chart:
        summary_table.write_chart(options.chart, entries)


if __name__ == "__main__":
    main()
