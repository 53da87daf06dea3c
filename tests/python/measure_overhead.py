"""Measures what Python and Ray add to `kiln batch`: the time from the first file of a set to its last, in turns.

Run: python tests/python/measure_overhead.py [IMAGES] [ROUNDS], where the module, and for its part Ray, are installed. The machine must do
nothing else. What is stated is the median of the ratios to `kiln batch` of the same round, and the seconds until the first file.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kiln

ROOT = Path(__file__).resolve().parents[2]
MODEL, PROGRAM = ROOT / "models" / "emoji", ROOT / "target" / "release" / "kiln"
THREADS = len(os.sched_getaffinity(0))
SIZE, STEPS = 128, 20
#: Seconds between two runs, in which processes of the last one end.
PAUSE = 1


def rows(count):
    return [{"prompt": "a red apple", "seed": i, "steps": STEPS, "width": SIZE, "height": SIZE, "output": f"{i}.png"} for i in range(count)]


def timed(make, count):
    """Seconds until the first file, and for each of the others."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.time()
        make(Path(folder))
        files = sorted(path.stat().st_mtime for path in Path(folder).glob("*.png"))
    assert len(files) == count, len(files)
    return files[0] - start, (files[-1] - files[0]) / (count - 1)


def main(count, rounds):
    with tempfile.TemporaryDirectory() as scratch:
        jobs = Path(scratch, "jobs.jsonl")
        jobs.write_text("".join(json.dumps(row) + "\n" for row in rows(count)))

        def command(folder):
            words = [PROGRAM, "batch", jobs, "-m", MODEL, "-o", folder, "--threads", str(THREADS), "--device", "cpu"]
            subprocess.run(words, check=True, capture_output=True)

        def module(folder):
            with kiln.Engine(MODEL, device="cpu", threads=THREADS) as engine:
                engine.batch(jobs, folder)

        def calls(folder):
            with kiln.Engine(MODEL, device="cpu", threads=THREADS) as engine:
                for row in rows(count):
                    output = row.pop("output")
                    engine.txt2img(**row)[0].save(folder / output)

        ways = {"kiln batch": command, "Engine.batch": module, "Engine.txt2img": calls}
        try:
            import ray

            from kiln.ray import KilnActor
        except ImportError:
            print("left out: Ray is not installed")
        else:
            ray.init(num_cpus=THREADS + 2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            ray.data.DataContext.get_current().enable_progress_bars = False

            def actor(folder):
                options = {"model": str(MODEL), "output": str(folder), "device": "cpu", "threads": THREADS}
                pool = ray.data.ActorPoolStrategy(size=1)
                dataset = ray.data.from_items(rows(count), override_num_blocks=max(count // 16, 1))
                dataset.map_batches(KilnActor, fn_constructor_kwargs=options, batch_size=16, compute=pool, num_cpus=THREADS).to_pandas()

            ways["KilnActor"] = actor
        found = {name: [] for name in ways}
        for turn in range(rounds):
            names = list(ways)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found[name].append(timed(ways[name], count))
                time.sleep(PAUSE)
        for name, values in found.items():
            ratios = [each / base for (_, each), (_, base) in zip(values, found["kiln batch"])]
            first, each = (statistics.median(value[i] for value in values) for i in (0, 1))
            span = f"{min(ratios):.3f} to {max(ratios):.3f}"
            print(f"{name:15} {1000 * each:7.1f} ms an image, {statistics.median(ratios):.3f} of kiln batch ({span}), the first after {first:.2f} s")


if __name__ == "__main__":
    main(*[int(word) for word in (sys.argv[1:] + ["24", "3"][len(sys.argv) - 1 :])])
