"""The tables and the chart's figures of what summary.py has measured."""

import json
import statistics
from pathlib import Path

MODELS = {
    "sd15-512": "SD 1.5, 512x512",
    "sdxl-1024": "SDXL, 1024x1024",
    "sd-turbo": "SD-Turbo with TAESD, 512x512",
    "emoji": "emoji, 256x256",
    "sd35-medium-1024": "SD 3.5 medium, 1024x1024",
    "sd35-large-1024": "SD 3.5 large, 1024x1024",
    "flux-schnell-1024": "FLUX.1 schnell, 1024x1024",
    "flux-dev-1024": "FLUX.1 dev, 1024x1024",
    "flux2-klein-4b-1024": "FLUX.2 klein 4B, 1024x1024",
    "flux2-klein-9b-1024": "FLUX.2 klein 9B, 1024x1024",
    "z-image-turbo-1024": "Z-Image-Turbo, 1024x1024",
}
STAGES = {
    "step": "guided step",
    "vae": "VAE decode",
    "vae-encode": "VAE encode",
    "text": "text, 77 tokens",
    "call": "prompt to PNG, {steps} steps",
}
# Engines in the order of columns, and their heads.
ENGINES = {
    "kiln": "Kiln",
    "kiln-fp8": "Kiln, `--compute fp8`",
    "kiln-int8": "Kiln, `--compute int8`",
    "diffusers-compiled": "diffusers, `torch.compile`",
    "diffusers": "diffusers",
    "openvino": "OpenVINO",
    "openvino-int8": "OpenVINO, 8 bits",
}
# What the chart shows of them.
BARS = {
    "kiln": "Kiln",
    "kiln-fp8": "Kiln, FP8",
    "diffusers-compiled": "diffusers, torch.compile",
    "diffusers": "diffusers, eager",
}


def runs_by_key(entries: list[dict]) -> dict[tuple, list[float]]:
    """Seconds of all rounds by (device, threads, dtype, model, stage, engine)."""
    runs: dict[tuple, list[float]] = {}
    for entry in entries:
        key = tuple(entry[name] for name in ("device", "threads", "dtype", "model", "stage", "engine"))
        runs.setdefault(key, []).extend(entry["runs"])
    return runs


def medians(entries: list[dict]) -> dict[tuple, float]:
    return {key: statistics.median(runs) for key, runs in runs_by_key(entries).items()}


def duration(seconds: float) -> str:
    """Three digits: milliseconds under half a second."""
    value, unit = (seconds * 1e3, "ms") if seconds < 0.5 else (seconds, "s")
    return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def stage_name(stage: str, entries: list[dict]) -> str:
    return STAGES.get(stage, stage).format(steps=entries[0]["steps"])


def tables(entries: list[dict]) -> str:
    """One table for GPUs and one for CPUs, each below a line that says what was measured."""
    parts = []
    for on_cpu in (False, True):
        if some := [entry for entry in entries if (entry["threads"] is not None) == on_cpu]:
            parts += [heading(some), table(some, on_cpu)]
    return "\n\n".join(parts)


def heading(entries: list[dict]) -> str:
    """Machine, versions, dates, and how often was measured."""

    def named(name: str) -> str:
        return ", ".join(dict.fromkeys(str(entry[name]) for entry in entries if entry[name]))

    driver = f", driver {named('driver')}" if named("driver") else ""
    versions = {entry["engine"].partition("-")[0]: entry["version"] for entry in entries}
    versions["kiln"] = named("commit") or versions.get("kiln", "")
    programs = ", ".join(f"{engine} {version}" for engine, version in versions.items())
    counts = [len(runs) for runs in runs_by_key(entries).values()]
    of = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])
    return (
        f"{named('device')}{driver}, {named('date')}, batch 1: {programs}. Medians of {of} runs, engines in turns; "
        "in parentheses Kiln's share of the peer's time."
    )


def table(entries: list[dict], on_cpu: bool) -> str:
    """A row for each stage, a column for each engine."""
    found = medians(entries)
    engines = [engine for engine in ENGINES if any(key[-1] == engine for key in found)]
    place = ["CPU, threads"] if on_cpu else []
    head = [*place, "type", "", *(ENGINES[engine] for engine in engines)]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * (len(place) + 2)}{' ---: |' * len(engines)}"]
    order = list(STAGES)
    rows = dict.fromkeys(key[:-1] for key in found)
    for row in sorted(rows, key=lambda row: (*map(str, row[:2]), row[2], list(MODELS).index(row[3]), order.index(row[4]))):
        device, threads, dtype, model, stage = row
        cells = [f"{device}, {threads}"] if on_cpu else []
        cells += [dtype, f"{MODELS[model]}: {stage_name(stage, entries)}"]
        for engine in engines:
            seconds = found.get((*row, engine))
            # Products in 8 bits are compared with each other.
            own = found.get((*row, "kiln-int8" if engine == "openvino-int8" else "kiln"))
            share = f" ({own / seconds:.2f})" if seconds and own and not engine.startswith("kiln") else ""
            cells.append(f"{duration(seconds)}{share}" if seconds else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_chart(file: Path, entries: list[dict]) -> None:
    """The bars of steps and calls on a GPU. Bars of programs that were not measured here stay in the file, with their note."""
    entries = [entry for entry in entries if entry["threads"] is None]
    chart = json.loads(file.read_text())
    others = {
        group["name"]: [bar for bar in group["bars"] if bar[0] not in BARS.values()] for group in chart["groups"]
    }
    groups = []
    for model, name in MODELS.items():
        for stage in ("step", "call"):
            found = {key[-1]: value for key, value in medians(entries).items() if key[3:5] == (model, stage)}
            bars = [[label, digits(found[engine] * 1e3)] for engine, label in BARS.items() if engine in found]
            title = f"{name}: {stage_name(stage, entries)}"
            if bars:
                groups.append({"name": title, "bars": bars + others.get(title, [])})
    programs = {entry["engine"].partition("-")[0]: entry for entry in entries}
    kiln, peer = programs["kiln"], programs["diffusers"]
    chart["title"] = f"Milliseconds on an {entries[0]['device']}, {entries[0]['dtype']}, one image"
    note = f"Kiln {kiln['commit']}, diffusers {peer['version']}: {kiln['date']}, in turns."
    chart["note"] = " ".join([note, chart.get("note_of_others", "")]).strip()
    chart["groups"] = groups
    file.write_text(json_text(chart))


def json_text(chart: dict) -> str:
    """JSON with a line for each bar."""
    bars = ["\n".join(f"        {json.dumps(bar)}," for bar in group["bars"]).rstrip(",") for group in chart["groups"]]
    groups = ",\n".join(
        f'    {{\n      "name": {json.dumps(group["name"])},\n      "bars": [\n{lines}\n      ]\n    }}'
        for group, lines in zip(chart["groups"], bars, strict=True)
    )
    head = "".join(f"  {json.dumps(name)}: {json.dumps(value)},\n" for name, value in chart.items() if name != "groups")
    return f'{{\n{head}  "groups": [\n{groups}\n  ]\n}}\n'


def digits(value: float) -> float:
    """A value in three digits."""
    return float(f"{value:.3g}")
