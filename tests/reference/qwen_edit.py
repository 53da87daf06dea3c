"""Values of Qwen-Image-Edit: the vision tower, the language model with images, the transformer with references, and latents of pipelines.

Writes `tests/fixtures/qwen_edit/`. All weights are those of the formula `tensor`, seeded by the name in the checkpoint; the tests have
it too.

- `tokenizer.json`: the 256 bytes, and the special tokens.
- `values.safetensors`: `hidden` `(39, 32)`, the last hidden state of a text with two images; `references` and `zero_cond_t`
  `(2, 4, 6, 10)`, outputs of transformers.
- `latents.safetensors`: final latents `(1, 4, 8, 8)` of the pipelines. `QwenImageEditPlusPipeline` sees the images of `inpaint` in their
  own sizes, and its language model sees them with 384 * 384 pixels; `QwenImageEditPipeline` sees one with 1024 * 1024.

The text encoder gets `mm_token_type_ids`, which diffusers 0.42.1 does not pass on: without them transformers 5 has positions on one
axis, and earlier versions had them on three axes, which the model was trained with.
"""

import json

import numpy as np
import PIL.Image
import torch
import transformers
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImageTransformer2DModel,
)
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

from common import FIXTURES, save_safetensors

FOLDER = FIXTURES / "qwen_edit"
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
]
IMAGE_TOKEN = 256 + SPECIAL.index("<|image_pad|>")
VISION = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 32, "patch_size": 14,
    "fullatt_block_indexes": [1], "window_size": 112, "in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2,
}
TEXT = {
    "vocab_size": 270, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
    "rope_parameters": {"mrope_section": [2, 3, 3], "rope_theta": 1000000.0, "rope_type": "default"},
}
TRANSFORMER = {
    "in_channels": 16, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
    "joint_attention_dim": 32, "axes_dims_rope": [4, 6, 6],
}
VAE = {
    "base_dim": 4, "z_dim": 4, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1, "latents_mean": [0.1, -0.2, 0.3, 0.0],
    "latents_std": [1.5, 2.5, 0.5, 1.25],
}
SCHEDULER = {
    "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 8192, "max_shift": 0.9, "num_train_timesteps": 1000,
    "shift": 1.0, "shift_terminal": 0.02, "time_shift_type": "exponential", "use_dynamic_shifting": True,
}
PROMPT, NEGATIVE, SEED = "make it night", "blurry", 42


def tensor(shape, seed):
    """Values that do not repeat, from -1.7 to 1.7."""
    count = torch.Size(shape).numel()
    values = (torch.arange(1, count + 1, dtype=torch.float64) * 0.618033988749895 + seed * 0.379).frac()
    return (values.float() * 3.4 - 1.7).reshape(shape)


def weight(name, shape):
    values = tensor(shape, sum(name.encode()))
    if len(shape) == 1 or max(shape) == torch.Size(shape).numel():
        return values * 0.1 + 0.5
    return values / torch.Size(shape[1:]).numel() ** 0.5


def filled(network):
    own = lambda name: name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
    network.load_state_dict({name: weight(own(name), old.shape) for name, old in network.state_dict().items()})
    return network.float().eval()


def tokenizer():
    """Bytes as in GPT-2: printable ones are themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, others = {byte: chr(byte) for byte in printable}, 0
    for byte in range(256):
        if byte not in letters:
            letters[byte], others = chr(256 + others), others + 1
    special = [
        {"id": 256 + i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for i, text in enumerate(SPECIAL)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": special, "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []},
    }


def picture(width, height):
    """An image that the tests make too."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return PIL.Image.fromarray(((7 * x + 13 * y + 29 * c + x * y) % 256).astype(np.uint8))


def language_model():
    config = transformers.Qwen2_5_VLConfig(text_config=TEXT, vision_config=VISION, image_token_id=IMAGE_TOKEN)
    model = filled(transformers.Qwen2_5_VLForConditionalGeneration(config))
    forward = model.forward
    model.forward = lambda input_ids, **more: forward(
        input_ids=input_ids, mm_token_type_ids=(input_ids == IMAGE_TOKEN).int(), **more
    )
    return model


def image_processor():
    size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384}
    return Qwen2VLImageProcessor(size=size)


def values():
    images = image_processor()(images=[picture(150, 100), picture(60, 190)], return_tensors="pt")
    pixels, grids = images["pixel_values"], images["image_grid_thw"]
    model = language_model()
    counts = (grids.prod(dim=1) // 4).tolist()
    ids = [3, 9, *[IMAGE_TOKEN] * counts[0], 20, *[IMAGE_TOKEN] * counts[1], 30, 31, 32]
    ids = torch.tensor([ids])
    hidden = model(
        input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels, image_grid_thw=grids, output_hidden_states=True
    ).hidden_states[-1][0]
    found = {"hidden": hidden}
    for name in ("references", "zero_cond_t"):
        network = filled(QwenImageTransformer2DModel(**TRANSFORMER, zero_cond_t=name == "zero_cond_t"))
        pack = QwenImageEditPipeline._pack_latents
        x = pack(tensor((2, 4, 6, 10), 0), 2, 4, 6, 10)
        first = pack(tensor((1, 4, 8, 4), 2), 1, 4, 8, 4).repeat(2, 1, 1)
        second = pack(tensor((2, 4, 2, 6), 3), 2, 4, 2, 6)
        mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1] * 7])
        y = network(
            hidden_states=torch.cat([x, first, second], dim=1),
            encoder_hidden_states=tensor((2, 7, 32), 1),
            encoder_hidden_states_mask=mask,
            timestep=torch.full((2,), 0.6),
            img_shapes=[[(1, 3, 5), (1, 4, 2), (1, 1, 3)]] * 2,
            return_dict=False,
        )[0][:, : x.shape[1]]
        found[name] = QwenImageEditPipeline._unpack_latents(y, 48, 80, 8)[:, :, 0]
    save_safetensors(FOLDER / "values.safetensors", found)


def pipeline(kind, **more):
    own = transformers.Qwen2Tokenizer(tokenizer_file=str(FOLDER / "tokenizer.json"), pad_token="<|endoftext|>")
    processor = transformers.Qwen2VLProcessor(
        image_processor=image_processor(), tokenizer=own, video_processor=transformers.Qwen2VLVideoProcessor()
    )
    made = kind(
        scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER),
        vae=filled(AutoencoderKLQwenImage(**VAE)),
        text_encoder=language_model(),
        tokenizer=own,
        processor=processor,
        transformer=filled(QwenImageTransformer2DModel(**TRANSFORMER, **more)),
    )
    made.set_progress_bar_config(disable=True)
    return made


def run(made, images, **more):
    arguments = {"prompt": PROMPT, "negative_prompt": NEGATIVE, "true_cfg_scale": 4.0, "num_inference_steps": 3, **more}
    generator = torch.Generator().manual_seed(SEED)
    latents = made(image=images, width=64, height=64, generator=generator, output_type="latent", **arguments).images
    return made._unpack_latents(latents, 64, 64, 8)[:, :, 0]


def latents():
    first, second = (PIL.Image.open(FIXTURES / "inpaint" / f"{name}.png").convert("RGB") for name in ("image", "mask"))
    second = second.crop((0, 0, 64, 32))
    second.save(FOLDER / "second.png")
    found = {"edit": run(pipeline(QwenImageEditPipeline), first)}
    for name, images, more in [
        ("plus", [first], {}),
        ("plus_two", [first, second], {}),
        ("plus_alone", [first, second], {"true_cfg_scale": 1.0}),
        ("zero_cond_t", [first, second], {}),
    ]:
        made = pipeline(QwenImageEditPlusPipeline, zero_cond_t=name == "zero_cond_t")
        # The own sizes of the images, which are multiples of 32.
        sizes = iter([image.size for image in images])
        whole = pipeline_qwenimage_edit_plus.calculate_dimensions
        own = lambda area, ratio: whole(area, ratio) if area == 384 * 384 else next(sizes)
        calls = iter([whole, *[own] * (2 * len(images))])
        pipeline_qwenimage_edit_plus.calculate_dimensions = lambda *size: next(calls)(*size)
        found[name] = run(made, images, **more)
        pipeline_qwenimage_edit_plus.calculate_dimensions = whole
    save_safetensors(FOLDER / "latents.safetensors", found)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False, separators=(",", ":")) + "\n")
    values()
    latents()
