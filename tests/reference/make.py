"""Make the fixtures in `tests/fixtures`.

    python tests/reference/make.py [PART ...] [--emoji DIR] [--merges FILE] [--taesd DIR] [--scripts DIR]

Without a part, all of them in order: models, stages, taesd, samplers, pipeline, emoji, single_file, lora. `stages`,
`pipeline`, `single_file` and `lora` need `models`; `single_file` needs `--scripts`, and is left out without.
"""

import argparse
import sys
from pathlib import Path

PARTS = ("models", "stages", "taesd", "samplers", "pipeline", "emoji", "single_file", "lora")
ROOT = Path(__file__).resolve().parents[2]
LIMIT = 8_000_000


def main():
    """Parse the command line and run the parts."""
    parser = argparse.ArgumentParser(description="Make the test fixtures.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--emoji", type=Path, default=ROOT / "models" / "emoji", help="the emoji model's folder")
    parser.add_argument("--merges", type=Path, help="a CLIP merges.txt (default: the emoji model's)")
    taesd_default = ROOT.parent / "shared" / "data" / "taesd"
    parser.add_argument("--taesd", type=Path, default=taesd_default, help="the folder with TAESD's real weights")
    parser.add_argument("--scripts", type=Path, help="the folder `scripts` of diffusers' repository")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")

    sys.dont_write_bytecode = True
    # Imported here so that --help and a wrong argument answer at once.
    import common
    import emoji
    import lora
    import models
    import pipeline
    import samplers
    import single_file
    import stages
    import taesd

    runs = {
        "models": lambda: models.main(args.merges or args.emoji / "tokenizer" / "merges.txt"),
        "stages": stages.main,
        "taesd": lambda: taesd.main(args.taesd),
        "samplers": samplers.main,
        "pipeline": pipeline.main,
        "emoji": lambda: emoji.main(args.emoji),
        "single_file": lambda: single_file.main(args.scripts),
        "lora": lora.main,
    }
    if args.scripts is None:
        if "single_file" in args.parts:
            parser.error("single_file needs --scripts, the folder of that name in diffusers' repository")
        del runs["single_file"]
    for part in PARTS:
        if part in runs and (not args.parts or part in args.parts):
            print(f"{part} ...", flush=True)
            runs[part]()
    size = sum(path.stat().st_size for path in common.FIXTURES.rglob("*") if path.is_file())
    print(f"{size / 1e6:.2f} MB in tests/fixtures")
    if size > LIMIT:
        raise SystemExit(f"the fixtures are over their limit of {LIMIT / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
