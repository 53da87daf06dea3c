"""Make the fixtures in `tests/fixtures`.

    python tests/reference/make.py [PART ...] [--emoji DIR] [--merges FILE] [--taesd DIR] [--scripts DIR] [--webui DIR]

Without a part, all of them in order: models, stages, taesd, samplers, pipeline, image_to_image, inpaint, rules, refiner, control, adapters, ip_adapter, guidance, lengths, regions, emoji, steps,
single_file, lora, lcm, lora_bias, flop. `stages`, `pipeline`, `image_to_image`, `inpaint`, `rules`, `control`, `adapters`, `ip_adapter`, `guidance`, `lengths`, `regions`, `single_file`, `lora`, `lcm` and
`lora_bias` need `models`; `refiner` needs `inpaint`; `steps` needs `pipeline` and `emoji`; `single_file` needs `--scripts`, and is left out without. `prompts` is made where it is named; it needs a checkout
of AUTOMATIC1111's web UI and the packages lark and compel.
"""

import argparse
import sys
from pathlib import Path

PARTS = (
    "models", "stages", "taesd", "samplers", "pipeline", "image_to_image", "inpaint", "rules", "refiner", "control", "adapters", "ip_adapter", "guidance", "lengths", "regions", "emoji", "steps", "single_file",
    "lora", "lcm", "lora_bias", "flop",
)
ROOT = Path(__file__).resolve().parents[2]
LIMIT = 10_500_000


def main():
    """Parse the command line and run the parts."""
    parser = argparse.ArgumentParser(description="Make the test fixtures.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--emoji", type=Path, default=ROOT / "models" / "emoji", help="the emoji model's folder")
    parser.add_argument("--merges", type=Path, help="a CLIP merges.txt (default: the emoji model's)")
    taesd_default = ROOT.parent / "shared" / "data" / "taesd"
    parser.add_argument("--taesd", type=Path, default=taesd_default, help="the folder with TAESD's real weights")
    parser.add_argument("--scripts", type=Path, help="the folder `scripts` of diffusers' repository")
    parser.add_argument("--webui", type=Path, help="a checkout of AUTOMATIC1111's web UI, for the part prompts")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS) - {"prompts"}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if "prompts" in args.parts and not args.webui:
        parser.error("prompts needs --webui")

    sys.dont_write_bytecode = True
    # Imported here so that --help and a wrong argument answer at once.
    import adapters
    import common
    import control
    import emoji
    import flop
    import guidance
    import image_to_image
    import inpaint
    import ip_adapter
    import lcm
    import lengths
    import lora
    import lora_bias
    import models
    import pipeline
    import prompts
    import refiner
    import regions
    import rules
    import samplers
    import single_file
    import stages
    import steps
    import taesd

    runs = {
        "models": lambda: models.main(args.merges or args.emoji / "tokenizer" / "merges.txt"),
        "stages": stages.main,
        "taesd": lambda: taesd.main(args.taesd),
        "samplers": samplers.main,
        "pipeline": pipeline.main,
        "image_to_image": image_to_image.main,
        "inpaint": inpaint.main,
        "rules": rules.main,
        "control": control.main,
        "ip_adapter": ip_adapter.main,
        "adapters": adapters.main,
        "guidance": guidance.main,
        "refiner": refiner.main,
        "lengths": lengths.main,
        "regions": regions.main,
        "emoji": lambda: emoji.main(args.emoji),
        "steps": lambda: steps.main(args.emoji),
        "single_file": lambda: single_file.main(args.scripts),
        "lora": lora.main,
        "lcm": lcm.main,
        "lora_bias": lora_bias.main,
        "flop": flop.main,
    }
    if args.scripts is None:
        if "single_file" in args.parts:
            parser.error("single_file needs --scripts, the folder of that name in diffusers' repository")
        del runs["single_file"]
    for part in PARTS:
        if part in runs and (not args.parts or part in args.parts):
            print(f"{part} ...", flush=True)
            runs[part]()
    if "prompts" in args.parts:
        print("prompts ...", flush=True)
        prompts.main(args.webui)
    size = sum(path.stat().st_size for path in common.FIXTURES.rglob("*") if path.is_file())
    print(f"{size / 1e6:.2f} MB in tests/fixtures")
    if size > LIMIT:
        raise SystemExit(f"the fixtures are over their limit of {LIMIT / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
