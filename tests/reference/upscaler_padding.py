"""What spandrel's call makes of images whose sides do not suit a network with pixel unshuffle: it pads them to a multiple of 4.

    python tests/reference/upscaler_padding.py    # spandrel 0.4.2 and torchvision 0.26.0 besides the pinned packages

`upscalers.py` calls the networks themselves, which pad to a multiple of their squares alone. This calls what `ModelLoader` gives,
as AUTOMATIC1111 and ComfyUI do. Writes `tests/fixtures/upscale/padded.safetensors`: `{file}.{width}x{height}.image` and `.result`.
"""

import torch
from safetensors.torch import load_file, save_file
from spandrel import ModelLoader

from upscalers import FOLDER, image

SIZES = {
    "params_ema_x2.pth": [(10, 11), (25, 19), (6, 4), (3, 2), (1, 5)],
    "params_x1.safetensors": [(14, 9), (1, 3)],
    "original_x4.pth": [(1, 5), (1, 1)],
}


@torch.no_grad()
def main():
    """Write the results."""
    tensors = {}
    for name, sizes in SIZES.items():
        path = FOLDER / name
        state = torch.load(path, weights_only=True) if name.endswith(".pth") else load_file(path)
        state = state.get("params_ema", state)
        call = ModelLoader().load_from_state_dict({key.removeprefix("params."): value for key, value in state.items()})
        call.model.float()
        for width, height in sizes:
            key, sample = f"{name}.{width}x{height}", image(width, 3, height, width)
            tensors[f"{key}.image"] = sample.contiguous()
            tensors[f"{key}.result"] = call(sample).clamp(0, 1).contiguous()
    save_file(tensors, FOLDER / "padded.safetensors")


if __name__ == "__main__":
    main()
