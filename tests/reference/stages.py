"""Inputs and outputs of every stage of the networks, over the tiny models.

Writes `tests/fixtures/stages/`:

- `text_{kind}.safetensors`: token ids and text encoder layers;
- `unet_{kind}.safetensors`: the denoiser, block by block;
- `vae_{kind}.safetensors`: the autoencoder, both ways.

README.md lists the keys.
"""

import json
import shutil

import torch
from transformers import CLIPTokenizer

from common import (
    CHUNK,
    KINDS,
    LONG_PROMPT,
    LONGER_PROMPT,
    MODELS,
    STAGES,
    chunk_ids,
    load_text,
    load_unet,
    load_vae,
    randn,
    run_text_encoder,
    save_safetensors,
)

# --------------------------------------------------------------------------------------------------
# Text

# (prompt, what is kept of the encoders' outputs: every layer, the layer that pipelines use, or ids alone)
PROMPTS = [
    ("a red apple", "all"),
    ("", "used"),
    ("  A  Café — naïve RÉSUMÉ, 12 monkeys & 3.5 ducks!!  🚀🍎 don't ##stop##\n(please)\t", "all"),
    (LONG_PROMPT, "used"),
    (LONGER_PROMPT, "used"),
    ("a " * (CHUNK - 1) + "a", "ids"),
    ("a " * CHUNK + "a", "ids"),
    ("a " * (2 * CHUNK), "ids"),
]

TRICKY = [
    "",
    " ",
    "a",
    "A Red APPLE",
    "don't can't I'm we're they've she'll he'd it's",
    "DON'T IT'S",
    "'s 't're",
    "rock'n'roll ''quoted''",
    "don’t “quoted” text…",
    "2024 3.14159 1,000,000 0x7f 4k",
    "½ ² Ⅷ ٣ 四",
    "hello!",
    "!",
    "wow!!! no way!?! ok !",
    "a!b ! c",
    "##hash #tag ###",
    "(masterpiece:1.2), [low quality], {x|y}",
    "a photo, 8k; f/1.8 -- sharp_focus @50mm 100%",
    "snake_case-and-dashes",
    "<|startoftext|>",
    "<|endoftext|>",
    "a cat <|endoftext|> a dog",
    "x<|startoftext|>y<|endoftext|>",
    "<|ENDOFTEXT|> <|EndOfText|>",
    "< |endoftext| > <|endoftext",
    "fish &amp; chips &lt;b&gt; &#39;s &quot;",
    "  leading and  double   spaces  ",
    "line\nbreak\r\nand\ttab\x0bvt\x0cff",
    "no\u00a0break \u2003em \u3000ideographic\u2028line",
    "zero\u200bwidth\u200djoiner \ufeffbom soft\u00adhyphen",
    "bell\x07 null\x00 escape\x1b[0m del\x7f nel\x85 fs\x1c us\x1f",
    "cafe\u0301 e\u0301\u0323 n\u0303 o\u0308 a\u030a",
    "café Ä É Ñ Ü ÅNGSTRÖM",
    "İstanbul ıI ẞ Straße ΣΊΣΥΦΟΣ ςσ Ǆ ﬁ",
    "e\u0335\u0336 z\u0351\u036b zalgo",
    "日本の桜、東京タワー。",
    "한국어 \u1112\u1161\u11ab \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 हिन्दी العربية",
    "привет мир ПРИВЕТ",
    "🍎🚀 👩‍👩‍👧 👍🏽 🇫🇷 ❤️ 1️⃣",
    "a🍎b 🍎's",
    "\U00010400\U0001d54f\U00020000 \ue000",
    "thethethe ininin theinandre",
    "antidisestablishmentarianism",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "- -- --- ... ---",
    "!!!!! ????? ,,,,,",
    "The quick brown fox jumps over the lazy dog",
]


def tricky_ids(tokenizer):
    """Ids without specials and uncut, one row a string, padded with -1."""
    rows = [tokenizer(text, add_special_tokens=False, truncation=False).input_ids for text in TRICKY]
    width = max(map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.int64)


def check_file_formats(tokenizer):
    """A tokenizer from vocab.json and merges.txt and its own tokenizer.json give the same ids."""
    folder = STAGES / "tokenizer.tmp"
    try:
        tokenizer.save_pretrained(folder)
        assert (folder / "tokenizer.json").exists() and not (folder / "vocab.json").exists()
        assert torch.equal(tricky_ids(tokenizer), tricky_ids(CLIPTokenizer.from_pretrained(folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_text(kind):
    """Ids and encoder outputs of one pipeline folder."""
    pairs = load_text(kind)
    tensors = {}
    for k, (text, keep) in enumerate(PROMPTS):
        for e, (tokenizer, encoder) in enumerate(pairs, 1):
            ids = chunk_ids(tokenizer, text)
            # Two tokenizers differ in their padding, and in what they make of their pad token in a text.
            tensors[f"p{k}.ids" if e == 1 else f"p{k}.e{e}.ids"] = ids
            if keep == "ids":
                continue
            out = run_text_encoder(encoder, ids)
            for i, hidden in enumerate(out["hidden"]):
                if keep == "all" or (kind == "sdxl" and i == len(out["hidden"]) - 2):
                    tensors[f"p{k}.e{e}.hidden.{i}"] = hidden
            if keep == "all" or kind != "sdxl":
                tensors[f"p{k}.e{e}.last"] = out["last"]
            tensors[f"p{k}.e{e}.pooled"] = out["pooled"]
    for e, (tokenizer, _) in enumerate(pairs, 1):
        check_file_formats(tokenizer)
        tensors["tricky.ids" if e == 1 else f"tricky.e{e}.ids"] = tricky_ids(tokenizer)
    metadata = {"prompts": json.dumps([text for text, _ in PROMPTS]), "tricky": json.dumps(TRICKY)}
    save_safetensors(STAGES / f"text_{kind}.safetensors", tensors, metadata)


# --------------------------------------------------------------------------------------------------
# U-Net

# (height, width, timestep, context length, whether each block's output is kept)
UNET_CASES = [
    (8, 8, 981.0, 77, True),
    (8, 12, 500.5, 154, False),
    (9, 13, 1.0, 10, True),
    (7, 5, 237.25, 3, False),
]


def record_blocks(unet):
    """Hooks that note the embedding that the blocks get and what each block gives; returns (notes, handles)."""
    notes, handles = {}, []

    def note(name):
        def hook(_module, _inputs, output):
            notes[name] = output[0] if isinstance(output, tuple) else output

        return hook

    def note_embedding(_module, _inputs, named):
        notes["time_emb"] = named["temb"]

    handles.append(unet.down_blocks[0].register_forward_pre_hook(note_embedding, with_kwargs=True))
    for name, module in [("conv_in", unet.conv_in), ("mid", unet.mid_block)]:
        handles.append(module.register_forward_hook(note(name)))
    for side, blocks in [("down", unet.down_blocks), ("up", unet.up_blocks)]:
        for i, block in enumerate(blocks):
            handles.append(block.register_forward_hook(note(f"{side}.{i}")))
    return notes, handles


def write_unet(kind, folder):
    """The denoiser on a batch of two, at square, wide and odd sizes."""
    unet = load_unet(folder)
    config = unet.config
    tensors = {}
    for k, (height, width, timestep, length, blocks) in enumerate(UNET_CASES):
        sample = randn((2, config.in_channels, height, width), kind, k, "sample")
        context = randn((2, length, config.cross_attention_dim), kind, k, "context")
        case = {"sample": sample, "timestep": torch.tensor([timestep]), "context": context}
        added = None
        if config.addition_embed_type == "text_time":
            pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
            size = (8.0 * height, 8.0 * width)
            case["text_embeds"] = randn((2, pooled), kind, k, "text_embeds")
            # Original size, crop, target size; the first row asks for the size itself, the second for others.
            case["time_ids"] = torch.tensor([[*size, 0, 0, *size], [512, 768, 16, 40, 1024, 640]])
            added = {name: case[name] for name in ("text_embeds", "time_ids")}
        notes, handles = record_blocks(unet)
        out = unet(sample, torch.tensor(timestep), context, added_cond_kwargs=added).sample
        for handle in handles:
            handle.remove()
        case["time_emb"] = notes.pop("time_emb")
        if blocks:
            case |= notes
        case["out"] = out
        tensors |= {f"s{k}.{name}": value for name, value in case.items()}
    save_safetensors(STAGES / f"unet_{kind}.safetensors", tensors)


# --------------------------------------------------------------------------------------------------
# Autoencoder

# (images, latent height, latent width)
DECODES = [(1, 8, 8), (2, 5, 7)]
ENCODES = [(1, 4, 6), (1, 5, 7)]


def write_vae(kind, folder):
    """Decoding of random latents, encoding of random images."""
    vae = load_vae(folder)
    factor = 2 ** (len(vae.config.block_out_channels) - 1)
    tensors = {}
    for k, (count, height, width) in enumerate(DECODES):
        latents = 3 * randn((count, 4, height, width), kind, k, "latents")
        tensors[f"d{k}.latents"] = latents
        tensors[f"d{k}.image"] = vae.decode(latents).sample
    for k, (count, height, width) in enumerate(ENCODES):
        image = randn((count, 3, factor * height, factor * width), kind, k, "image").clamp(-2, 2) / 2
        moments = vae.encode(image).latent_dist
        tensors[f"e{k}.image"] = image
        tensors[f"e{k}.mean"] = moments.mean
        tensors[f"e{k}.logvar"] = moments.logvar
    notes = {
        "latents": "what vae.decode gets: sampled latents already divided by scaling_factor (shift_factor is not "
        "applied by vae.decode)",
        "image": "what vae.decode gives, about -1..1, not clamped",
        "logvar": "clamped to -30..20, as the distribution holds it",
    }
    save_safetensors(STAGES / f"vae_{kind}.safetensors", tensors, notes)


def main():
    """Write every stage."""
    for kind in KINDS:
        write_text(kind)
        write_unet(kind, MODELS / kind / "unet")
    write_unet("inpaint", MODELS / "unet_inpaint")
    for kind in ("sd1", "sdxl"):
        write_vae(kind, MODELS / kind / "vae")
    write_vae("plain", MODELS / "vae_plain")
