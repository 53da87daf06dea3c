"""Small random upscalers in every layout that files have, and what spandrel makes of images with them.

Writes `tests/fixtures/upscale/`. Run by itself: it needs spandrel 0.4.2 and torchvision besides the pinned packages.

    pip install spandrel==0.4.2 torchvision==0.26.0
    python tests/reference/upscalers.py [--esrgan DIR]

`--esrgan DIR` is `data/esrgan` of the reference data beside the checkout: with it, the results of the two real files are
made too.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from spandrel import ModelLoader
from spandrel.architectures.Compact import Compact
from spandrel.architectures.ESRGAN import ESRGAN
from spandrel.architectures.ESRGAN.__arch import RRDB as arch

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
FOLDER = FIXTURES / "upscale"
FEATURES, GROWTH, BLOCKS = 8, 4, 2

# spandrel builds blocks with a growth of 32 alone. Its files would be of half a megabyte.
full_block = arch.B.RRDB
arch.B.RRDB = lambda **options: full_block(**{**options, "gc": GROWTH})


def basicsr(state, blocks, upsamples):
    """The names of BasicSR for those of ESRGAN's authors."""
    return rename(state, blocks, upsamples, "body.{}.rdb{}.conv{}", "conv_body", "conv_up{}", "conv_hr")


def trunk(state, blocks, upsamples):
    """The names of BSRGAN."""
    return rename(state, blocks, upsamples, "RRDB_trunk.{}.RDB{}.conv{}", "trunk_conv", "upconv{}", "HRconv")


def rename(state, blocks, upsamples, conv, body, up, hr):
    names = {"model.0": "conv_first", f"model.1.sub.{blocks}": body}
    for i in range(blocks):
        for j in range(1, 4):
            for k in range(1, 6):
                names[f"model.1.sub.{i}.RDB{j}.conv{k}.0"] = conv.format(i, j, k)
    for i in range(1, upsamples + 1):
        names[f"model.{3 * i}"] = up.format(i)
    names |= {f"model.{3 * upsamples + 2}": hr, f"model.{3 * upsamples + 4}": "conv_last"}
    split = (key.rsplit(".", 1) + [value] for key, value in state.items())
    return {f"{names[layer]}.{kind}": value for layer, kind, value in split}


def image(seed, channels, height, width):
    """Smooth colours with an edge and some noise, 0 to 1."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    waves = [torch.sin(3 * x + c) * torch.cos(4 * y - c) / 3 + 0.5 for c in range(channels)]
    noise = torch.rand((channels, height, width), generator=generator)
    return (0.7 * torch.stack(waves) + 0.2 * noise + 0.1 * (x > y)).clamp(0, 1)[None]


@torch.no_grad()
def randomize(model, seed, sample, last):
    """Random weights in f16, the last layer such that the results fill 0 to 1 and few are cut."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 4:
            fan_in = parameter[0].numel()
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * fan_in**-0.5)
        elif name.endswith("bias"):
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        else:
            parameter.copy_(0.5 * torch.rand(parameter.shape, generator=generator))  # slopes
        parameter.copy_(parameter.half())
    result = model(sample)
    weight, bias = model.get_parameter(f"{last}.weight"), model.get_parameter(f"{last}.bias")
    factor = 0.2 / result.std()
    weight.copy_((weight * factor).half())
    bias.copy_((bias * factor).half())
    bias.add_(0.5 - model(sample).mean())
    bias.copy_(bias.half())


def rrdb(scale, shuffle=None):
    channels = 3 * (shuffle or 1) ** 2
    return ESRGAN(
        in_nc=channels, num_filters=FEATURES, num_blocks=BLOCKS, scale=scale * (shuffle or 1), shuffle_factor=shuffle
    )


def compact(upscale, act_type="prelu", channels=3):
    return Compact(
        num_in_ch=channels, num_out_ch=channels, num_feat=FEATURES, num_conv=3, upscale=upscale, act_type=act_type
    )


# name: model, upsamples of RRDBNet, (height, width), how it is written
CASES = {
    "original_x4.pth": (lambda: rrdb(4), 2, (9, 7), lambda state: state),
    "original_x1.safetensors": (lambda: rrdb(1), 0, (6, 11), lambda state: state),
    "original_x8.safetensors": (lambda: rrdb(8), 3, (5, 4), lambda state: state),
    "trunk_x2.pth": (lambda: rrdb(2), 1, (8, 9), lambda state: trunk(state, BLOCKS, 1)),
    "basicsr_x4.safetensors": (lambda: rrdb(4), 2, (7, 12), lambda state: basicsr(state, BLOCKS, 2)),
    # In other dictionaries, among them one with other weights: those of the average are preferred.
    "params_ema_x2.pth": (
        lambda: rrdb(2, 2),
        2,
        (11, 10),
        lambda state: {
            "params": {key: 2 * value for key, value in basicsr(state, BLOCKS, 2).items()},
            "params_ema": basicsr(state, BLOCKS, 2),
        },
    ),
    "params_x1.safetensors": (
        lambda: rrdb(1, 4),
        2,
        (9, 14),
        lambda state: {f"params.{key}": value for key, value in basicsr(state, BLOCKS, 2).items()},
    ),
    "compact_x4.safetensors": (lambda: compact(4), 0, (7, 9), lambda state: state),
    "compact_x2.pth": (lambda: compact(2), 0, (10, 6), lambda state: {"params": state}),
    "compact_x3_gray.safetensors": (lambda: compact(3, channels=1), 0, (5, 8), lambda state: state),
    "compact_x2_leaky.safetensors": (lambda: compact(2, "leakyrelu"), 0, (6, 7), lambda state: state),
    "compact_x1_relu.safetensors": (lambda: compact(1, "relu"), 0, (9, 8), lambda state: state),
}


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--esrgan", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for seed, (name, (build, upsamples, (height, width), write)) in enumerate(CASES.items()):
        model = build().float().eval()
        is_rrdb = isinstance(model, ESRGAN)
        channels = 3 if is_rrdb else model.num_in_ch
        sample = image(seed, channels, height, width)
        last = f"model.{3 * upsamples + 4}" if is_rrdb else "body.8"
        randomize(model, seed, sample, last)
        state = {key: value.half().contiguous() for key, value in model.state_dict().items()}
        written = write(state)
        if name == "trunk_x2.pth":
            written = {key: value.float() for key, value in written.items()}
        if name.endswith(".pth"):
            torch.save(written, FOLDER / name)
        else:
            save_file(written, FOLDER / name)
        expected = model(sample)
        if "leaky" not in name and "relu" not in name:
            # spandrel's own reading of the file, where it has one: without a prefix in the names.
            loaded = torch.load(FOLDER / name, weights_only=True) if name.endswith(".pth") else load_file(FOLDER / name)
            loaded = loaded.get("params_ema", loaded.get("params", loaded))
            loaded = {key.removeprefix("params."): value for key, value in loaded.items()}
            descriptor = ModelLoader().load_from_state_dict(loaded)
            assert torch.equal(descriptor.model.float()(sample), expected), name
            print(name, descriptor.architecture.id, f"x{descriptor.scale}", descriptor.tags, end=" ")
        cut = ((expected < 0) | (expected > 1)).float().mean()
        print(name, tuple(expected.shape), f"std {expected.std():.3f}, {cut:.3f} cut")
        tensors[f"{name}.image"], tensors[f"{name}.result"] = sample, expected.clamp(0, 1)
    save_file({key: value.contiguous() for key, value in tensors.items()}, FOLDER / "results.safetensors")

    if options.esrgan:
        arch.B.RRDB = full_block
        picture = load_file(FIXTURES / "taesd/real.safetensors")["picture"].permute(2, 0, 1)[None] / 255
        tensors = {"image": picture[:, :, 20:38, 30:51].contiguous()}
        for name in ("RealESRGAN_x4plus_anime_6B.fp16", "realesr-animevideov3-x4"):
            state = {key: value.float() for key, value in load_file(options.esrgan / f"{name}.safetensors").items()}
            model = ModelLoader().load_from_state_dict(state).model.float()
            tensors[name] = model(tensors["image"]).clamp(0, 1).contiguous()
            print(name, f"std {tensors[name].std():.3f}")
        save_file(tensors, FOLDER / "real.safetensors")


if __name__ == "__main__":
    main()
