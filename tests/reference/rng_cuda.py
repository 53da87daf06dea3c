"""What PyTorch's CUDA generator draws: writes `tests/fixtures/stages/rng_cuda.json`.

Needs a GPU, and PyTorch with CUDA only:

    python tests/reference/rng_cuda.py [FOLDER]

A row is a seed and the sizes of consecutive draws of one generator; of each draw some values are written, with their
indices: all of small ones, some of large ones. `threads` is the number of resident threads of the GPU, on which the order of
the values of large draws depends.
"""

import json
import sys
from pathlib import Path

import torch

SEEDS = (0, 42, 2**32 - 1, 123456789012)
DRAWS = (
    [1],
    [2, 3, 1],
    [255, 257],
    [16384, 16384, 5],
    [65536, 4],
    [2 * 4 * 96 * 64],
    [1 << 20, 7],
    [3000001, 3],
)
KEPT = 12


def picked(n):
    """Indices of a draw: both ends and what lies evenly between."""
    return sorted({i * (n - 1) // (KEPT - 1) for i in range(KEPT)} | set(range(min(n, 3))))


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "fixtures/stages"
    gpu = torch.cuda.get_device_properties(0)
    rows = []
    for seed in SEEDS:
        for draws in DRAWS:
            generator = torch.Generator("cuda").manual_seed(seed)
            values = []
            for n in draws:
                drawn = torch.randn(n, generator=generator, device="cuda").cpu()
                values.append([[i, float(f"{drawn[i].item():.9g}")] for i in picked(n)])
            rows.append({"seed": seed, "draws": draws, "values": values})
    head = {
        "card": gpu.name,
        "torch": torch.__version__,
        "threads": gpu.multi_processor_count * gpu.max_threads_per_multi_processor,
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n'
    (folder / "rng_cuda.json").write_text(text)


if __name__ == "__main__":
    main()
