"""Tiny random models with the whole architecture of the Stable Diffusion families.

Writes `tests/fixtures/models/`: the pipeline folders `sd1`, `sd2v` and `sdxl` (the layout of diffusers'
`save_pretrained`), a nine-channel U-Net alone (`unet_inpaint`) and an autoencoder alone (`vae_plain`).

`sd1` and `sd2v` carry configs with only the keys that the files on the Hub have, so that a reader's defaults are
tested; `sdxl`, `unet_inpaint` and `vae_plain` carry every key that diffusers writes today. Weights are random, drawn
so that activations keep a variance near 1 and every bias and gain matters, then rounded to f16.
"""

import json
import shutil
import zlib
from pathlib import Path

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from common import MODELS, load_text, load_text_encoder, load_unet, load_vae, save_json, save_safetensors

MERGES = 700
VOCAB = 2 * 256 + MERGES + 2
BOS, EOS = VOCAB - 2, VOCAB - 1

# --------------------------------------------------------------------------------------------------
# Configs: schedulers

SCHEDULERS = {
    # Stable Diffusion 1.5's file: no prediction_type, no timestep_spacing.
    "sd1": {
        "_class_name": "PNDMScheduler",
        "_diffusers_version": "0.6.0",
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "num_train_timesteps": 1000,
        "set_alpha_to_one": False,
        "skip_prk_steps": True,
        "steps_offset": 1,
        "trained_betas": None,
        "clip_sample": False,
    },
    # Stable Diffusion 2.1's file.
    "sd2v": {
        "_class_name": "DDIMScheduler",
        "_diffusers_version": "0.8.0",
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "clip_sample": False,
        "num_train_timesteps": 1000,
        "prediction_type": "v_prediction",
        "set_alpha_to_one": False,
        "skip_prk_steps": True,
        "steps_offset": 1,
        "trained_betas": None,
    },
    # SDXL base 1.0's file.
    "sdxl": {
        "_class_name": "EulerDiscreteScheduler",
        "_diffusers_version": "0.19.0.dev0",
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "clip_sample": False,
        "interpolation_type": "linear",
        "num_train_timesteps": 1000,
        "prediction_type": "epsilon",
        "sample_max_value": 1.0,
        "set_alpha_to_one": False,
        "skip_prk_steps": True,
        "steps_offset": 1,
        "timestep_spacing": "leading",
        "trained_betas": None,
        "use_karras_sigmas": False,
    },
}

# --------------------------------------------------------------------------------------------------
# Configs: U-Nets

UNETS = {
    "sd1": {
        "_class_name": "UNet2DConditionModel",
        "_diffusers_version": "0.6.0",
        "act_fn": "silu",
        "attention_head_dim": 4,
        "block_out_channels": [8, 12, 20, 20],
        "center_input_sample": False,
        "cross_attention_dim": 32,
        "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
        "downsample_padding": 1,
        "flip_sin_to_cos": True,
        "freq_shift": 0,
        "in_channels": 4,
        "layers_per_block": 1,
        "mid_block_scale_factor": 1,
        "norm_eps": 1e-05,
        "norm_num_groups": 4,
        "out_channels": 4,
        "sample_size": 64,
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
    },
    "sd2v": {
        "_class_name": "UNet2DConditionModel",
        "_diffusers_version": "0.10.0.dev0",
        "act_fn": "silu",
        "attention_head_dim": [2, 3, 5],
        "block_out_channels": [8, 12, 20],
        "center_input_sample": False,
        "cross_attention_dim": 36,
        "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
        "downsample_padding": 1,
        "dual_cross_attention": False,
        "flip_sin_to_cos": True,
        "freq_shift": 0,
        "in_channels": 4,
        "layers_per_block": 2,
        "mid_block_scale_factor": 1,
        "norm_eps": 1e-05,
        "norm_num_groups": 4,
        "num_class_embeds": None,
        "only_cross_attention": False,
        "out_channels": 4,
        "sample_size": 96,
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
        "use_linear_projection": True,
        "upcast_attention": True,
    },
    "sdxl": {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "attention_head_dim": [2, 3, 5],
        "block_out_channels": [8, 12, 20],
        "cross_attention_dim": 24 + 32,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
        "in_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "out_channels": 4,
        "projection_class_embeddings_input_dim": 28 + 6 * 8,
        "sample_size": 128,
        "transformer_layers_per_block": [1, 2, 2],
        "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
        "use_linear_projection": True,
    },
    # Nothing here has the usual value: per-block layer counts, an attention block between two without,
    # three groups, the timestep embedding's other order and shift.
    "unet_inpaint": {
        "attention_head_dim": [2, 3, 6],
        "block_out_channels": [6, 12, 18],
        "cross_attention_dim": 20,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
        "flip_sin_to_cos": False,
        "freq_shift": 1,
        "in_channels": 9,
        "layers_per_block": [1, 2, 1],
        "norm_eps": 1e-06,
        "norm_num_groups": 3,
        "out_channels": 4,
        "sample_size": 64,
        "transformer_layers_per_block": [1, 1, 2],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    },
}

# The gain of each U-Net's last convolution, chosen so that sampled latents end near the scale of real ones.
UNET_GAINS = {"sd1": 0.7, "sd2v": 0.4, "sdxl": 0.3}

# --------------------------------------------------------------------------------------------------
# Configs: autoencoders. Four blocks give the usual factor 8; `vae_plain` has three, factor 4.


def vae_blocks(count):
    """The block types of an autoencoder with `count` levels."""
    return {"down_block_types": ["DownEncoderBlock2D"] * count, "up_block_types": ["UpDecoderBlock2D"] * count}


VAES = {
    # No scaling_factor: the default is 0.18215.
    "sd1": {
        "_class_name": "AutoencoderKL",
        "_diffusers_version": "0.6.0",
        "act_fn": "silu",
        "block_out_channels": [8, 8, 12, 12],
        "in_channels": 3,
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "out_channels": 3,
        "sample_size": 512,
        **vae_blocks(4),
    },
    "sd2v": {
        "_class_name": "AutoencoderKL",
        "_diffusers_version": "0.8.0",
        "act_fn": "silu",
        "block_out_channels": [4, 8, 8, 12],
        "in_channels": 3,
        "latent_channels": 4,
        "layers_per_block": 2,
        "norm_num_groups": 2,
        "out_channels": 3,
        "sample_size": 768,
        **vae_blocks(4),
    },
    "sdxl": {
        "block_out_channels": [8, 8, 8, 16],
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "sample_size": 1024,
        "scaling_factor": 0.13025,
        "use_quant_conv": True,
        "use_post_quant_conv": True,
        **vae_blocks(4),
    },
    "vae_plain": {
        "block_out_channels": [6, 12, 12],
        "latent_channels": 4,
        "layers_per_block": 1,
        "mid_block_add_attention": True,
        "norm_num_groups": 3,
        "sample_size": 256,
        "scaling_factor": 0.3611,
        "shift_factor": 0.1,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
        **vae_blocks(3),
    },
}

# --------------------------------------------------------------------------------------------------
# Configs: text encoders. The files on the Hub say bos 0, eos 2 and pad 1, which no tokenizer agrees with:
# eos 2 means "pool at the largest id" in transformers. `sd2v` and SDXL's first encoder say the truth.


def text_config(architecture, act, hidden, layers, heads, projection, eos):
    """A CLIP text encoder's config, with the keys of the Hub's files."""
    return {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": 0 if eos == 2 else BOS,
        "dropout": 0.0,
        "eos_token_id": eos,
        "hidden_act": act,
        "hidden_size": hidden,
        "initializer_factor": 1.0,
        "initializer_range": 0.02,
        "intermediate_size": 3 * hidden,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 77,
        "model_type": "clip_text_model",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "pad_token_id": 1,
        "projection_dim": projection,
        "torch_dtype": "float16",
        "vocab_size": VOCAB,
    }


# (folder, config, whether the file's keys carry the `text_model.` prefix)
TEXT_ENCODERS = {
    "sd1": [("text_encoder", text_config("CLIPTextModel", "quick_gelu", 32, 3, 4, 32, 2), True)],
    "sd2v": [("text_encoder", text_config("CLIPTextModel", "gelu", 36, 3, 3, 16, EOS), False)],
    "sdxl": [
        ("text_encoder", text_config("CLIPTextModel", "quick_gelu", 24, 2, 3, 24, EOS), False),
        ("text_encoder_2", text_config("CLIPTextModelWithProjection", "gelu", 32, 3, 4, 28, 2), True),
    ],
}

# --------------------------------------------------------------------------------------------------
# Weights


def is_norm(name):
    """Whether a parameter belongs to a normalization layer."""
    return "norm" in name.rsplit(".", 2)[-2]


# Layers whose outputs reach the end with their own scale: the predicted noise, the image, the latents' mean
# and log variance (the encoder's conv_out feeds both; quant_conv, where there is one, follows).
OUTPUT_GAINS = {"conv_out": 1.0, "decoder.conv_out": 0.5, "encoder.conv_out": 1.5}


def stretch(model, kind, out_gain=None):
    """Give every parameter random values that matter, rounded to f16.

    Matrices and kernels keep the variance of their input, norms have gains in 0.5..1.5, nothing is zero.
    Attention's queries and keys are larger, so that the softmax is far from uniform, and so are its outputs.
    """
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{kind}/{name}".encode()))
        normal = torch.randn(parameter.shape, generator=generator)
        layer = name.rsplit(".", 1)[0]
        if is_norm(name):
            if name.endswith("weight"):
                value = 0.5 + torch.rand(parameter.shape, generator=generator)
            else:
                value = 0.2 * normal
        elif parameter.ndim == 1:
            value = 0.2 * normal
        elif "token_embedding" in name:
            value = normal
        elif "position_embedding" in name:
            value = 0.5 * normal
        else:
            gain = 1.0
            if layer.rsplit(".", 1)[-1] in ("to_q", "to_k", "q_proj", "k_proj"):
                gain = 1.3
            elif ".to_out." in name or layer.endswith(("to_v", "v_proj")):
                gain = 1.4
            if layer in OUTPUT_GAINS:
                gain = OUTPUT_GAINS[layer] if out_gain is None else out_gain
            value = normal * gain / parameter[0].numel() ** 0.5
        parameter.copy_(value.half())
    return model.eval()


def save_weights(path, state):
    """Write a state dictionary as f16 (integers as they are)."""
    half = {name: t.half() if t.is_floating_point() else t for name, t in state.items()}
    save_safetensors(path, half, {"format": "pt"})


def write_diffusers_model(folder, model, config):
    """A U-Net or an autoencoder: config.json and the weights. `config` is written as it is where it is a Hub file."""
    if "_class_name" not in config:
        config = {k: v for k, v in json.loads(model.to_json_string()).items() if k != "_name_or_path"}
    save_json(folder / "config.json", config)
    save_weights(folder / "diffusion_pytorch_model.safetensors", model.state_dict())


def write_unet(folder, kind, out_gain=None):
    """Make, write and read back one U-Net."""
    model = stretch(UNet2DConditionModel.from_config(UNETS[kind]), f"{kind}/unet", out_gain)
    write_diffusers_model(folder, model, UNETS[kind])
    check_same(model, load_unet(folder))


def write_vae(folder, kind):
    """Make, write and read back one autoencoder."""
    model = stretch(AutoencoderKL.from_config(VAES[kind]), f"{kind}/vae")
    write_diffusers_model(folder, model, VAES[kind])
    check_same(model, load_vae(folder))


def write_text_encoder(folder, kind, config, prefixed):
    """Make, write and read back one text encoder, with or without `text_model.` before its keys."""
    projected = config["architectures"] == ["CLIPTextModelWithProjection"]
    cls = CLIPTextModelWithProjection if projected else CLIPTextModel
    model = stretch(cls(CLIPTextConfig(**config)), f"{kind}/{folder.name}")
    state = {}
    for name, tensor in model.state_dict().items():
        bare = name.removeprefix("text_model.")
        outside = bare.startswith("text_projection.")
        state[f"text_model.{bare}" if prefixed and not outside else bare] = tensor
    if kind == "sd1":
        # Files saved before 2023 carry this buffer.
        state["text_model.embeddings.position_ids"] = torch.arange(77)[None]
    save_json(folder / "config.json", config)
    save_weights(folder / "model.safetensors", state)
    check_same(model, load_text_encoder(folder))


def check_same(model, loaded):
    """What was written is what the library reads."""
    state, other = model.state_dict(), loaded.state_dict()
    assert state.keys() == other.keys()
    for name, tensor in state.items():
        assert other[name].dtype == torch.float32, name
        assert torch.equal(tensor, other[name]), name


# --------------------------------------------------------------------------------------------------
# Tokenizers


def byte_symbols():
    """CLIP's 256 byte symbols in its order: the printable bytes first, the others moved above 255."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]


def vocabulary(merges):
    """CLIP's vocabulary over the given merges: byte symbols, the same at a word's end, merges, two specials."""
    symbols = byte_symbols()
    words = symbols + [s + "</w>" for s in symbols] + [a + b for a, b in merges]
    vocab = {w: i for i, w in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    assert len(vocab) == VOCAB
    return vocab


def read_merges(path):
    """The first `MERGES` merges of a CLIP merges.txt."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("#version")
    return [tuple(line.split()) for line in lines[1 : MERGES + 1]]


def special(content):
    """A special token as the Hub's files spell it."""
    return {"content": content, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}


def write_slow_tokenizer(folder, merges, pad):
    """The older export: vocab.json, merges.txt, special_tokens_map.json, tokenizer_config.json."""
    start, end = special("<|startoftext|>"), special("<|endoftext|>")
    save_json(folder / "vocab.json", vocabulary(merges), indent=None)
    text = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]) + "\n"
    (folder / "merges.txt").write_text(text, encoding="utf-8")
    save_json(
        folder / "special_tokens_map.json",
        {"bos_token": start, "eos_token": end, "pad_token": pad, "unk_token": end},
    )
    save_json(
        folder / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "bos_token": {"__type": "AddedToken", **start},
            "do_lower_case": True,
            "eos_token": {"__type": "AddedToken", **end},
            "errors": "replace",
            "model_max_length": 77,
            "pad_token": pad,
            "tokenizer_class": "CLIPTokenizer",
            "unk_token": {"__type": "AddedToken", **end},
        },
    )


def write_fast_tokenizer(folder, merges, pad):
    """The newer export: tokenizer.json and tokenizer_config.json alone."""
    tokenizer = CLIPTokenizer(vocab=vocabulary(merges), merges=list(merges), pad_token=pad)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    save_json(
        folder / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "bos_token": "<|startoftext|>",
            "do_lower_case": True,
            "eos_token": "<|endoftext|>",
            "errors": "replace",
            "model_max_length": 77,
            "pad_token": pad,
            "tokenizer_class": "CLIPTokenizer",
            "unk_token": "<|endoftext|>",
        },
    )


# --------------------------------------------------------------------------------------------------
# Folders


def model_index(kind):
    """The pipeline folder's model_index.json."""
    clip = {"text_encoder": ["transformers", "CLIPTextModel"], "tokenizer": ["transformers", "CLIPTokenizer"]}
    common = {
        "scheduler": ["diffusers", SCHEDULERS[kind]["_class_name"]],
        **clip,
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    if kind == "sdxl":
        return {
            "_class_name": "StableDiffusionXLPipeline",
            "_diffusers_version": "0.19.0.dev0",
            "force_zeros_for_empty_prompt": True,
            "add_watermarker": None,
            **common,
            "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
            "tokenizer_2": ["transformers", "CLIPTokenizer"],
        }
    return {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.8.0",
        "feature_extractor": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
        **common,
    }


def main(merges_file):
    """Write every model; `merges_file` is any CLIP merges.txt with at least `MERGES` merges."""
    merges = read_merges(merges_file)
    shutil.rmtree(MODELS, ignore_errors=True)
    for kind in ("sd1", "sd2v", "sdxl"):
        root = MODELS / kind
        save_json(root / "model_index.json", model_index(kind))
        save_json(root / "scheduler" / "scheduler_config.json", SCHEDULERS[kind])
        for folder, config, prefixed in TEXT_ENCODERS[kind]:
            write_text_encoder(root / folder, kind, config, prefixed)
        write_unet(root / "unet", kind, UNET_GAINS[kind])
        write_vae(root / "vae", kind)
    write_slow_tokenizer(MODELS / "sd1" / "tokenizer", merges, "<|endoftext|>")
    write_fast_tokenizer(MODELS / "sd2v" / "tokenizer", merges, "!")
    write_slow_tokenizer(MODELS / "sdxl" / "tokenizer", merges, "<|endoftext|>")
    write_slow_tokenizer(MODELS / "sdxl" / "tokenizer_2", merges, "!")
    write_unet(MODELS / "unet_inpaint", "unet_inpaint")
    write_vae(MODELS / "vae_plain", "vae_plain")
    for kind, pad in (("sd1", EOS), ("sd2v", 0), ("sdxl", EOS)):
        tokenizer = load_text(kind)[0][0]
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (BOS, EOS, pad)
