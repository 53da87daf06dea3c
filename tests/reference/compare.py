"""Values of image comparisons: SSIM by scikit-image, LPIPS by the package lpips, CLIP scores by transformers.

    pip install scikit-image==0.26.0 lpips==0.1.4 torchvision
    python tests/reference/compare.py

Writes `tests/fixtures/compare/values.json` and the small CLIP model `tests/fixtures/compare/clip`. Images and the weights of LPIPS'
networks are not stored: `patterns.py` makes both, and so do the tests of `crates/compare`.
"""

import json
import shutil
import warnings

import lpips
import numpy as np
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from common import FIXTURES, MODELS, save_safetensors
from patterns import image, noisy, random_weights

warnings.simplefilter("ignore")
FOLDER = FIXTURES / "compare"
SIZES = ((11, 11), (12, 37), (64, 48), (97, 80))  # width, height
PROMPTS = ("a red apple", "", "two green hearts on a wooden table")


def lpips_values(net):
    """LPIPS of an image of each size and its noisy version."""
    model = lpips.LPIPS(net=net, pretrained=False, pnet_rand=True, verbose=False)
    own = {k: v for k, v in model.state_dict().items() if not k.startswith(("lins.", "scaling_layer."))}
    weights = {key: random_weights(key, tuple(value.shape)) for key, value in own.items()}
    left = model.load_state_dict(weights, strict=False)
    assert not left.unexpected_keys and all(key.startswith(("lins.", "scaling_layer.")) for key in left.missing_keys)
    for width, height in SIZES[2:]:
        first = image(width, height)
        second = noisy(first, 40)
        value = model(lpips.im2tensor(first), lpips.im2tensor(second)).item()
        yield {"size": [width, height], "amplitude": 40, "value": value}


def clip_folder():
    """A small CLIP model with both encoders, and its scores."""
    torch.manual_seed(20)
    tokenizer = CLIPTokenizer.from_pretrained(MODELS / "sd1" / "tokenizer")
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_act": "quick_gelu"}
    config = CLIPConfig(
        text_config={
            **layers, "hidden_size": 24, "intermediate_size": 48, "vocab_size": len(tokenizer), "projection_dim": 20,
            "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config={
            **layers, "hidden_size": 32, "intermediate_size": 64, "image_size": 32, "patch_size": 8, "projection_dim": 20,
        },
        projection_dim=20,
    )
    model = CLIPModel(config).eval()
    state = {}
    for name, value in model.state_dict().items():
        if "position_ids" in name:
            continue
        fan_in = int(np.prod(value.shape[1:])) if value.dim() > 1 else 1
        random = torch.randn(value.shape) / (fan_in**0.5 if value.dim() > 1 else 5.0)
        state[name] = (random + 1.0 if "norm" in name and name.endswith("weight") else random).half()
    folder = FOLDER / "clip"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(MODELS / "sd1" / "tokenizer" / name, folder)
    (folder / "config.json").write_text(json.dumps(config.to_diff_dict(), indent=1, sort_keys=True) + "\n")
    save_safetensors(folder / "model.safetensors", state)
    model.load_state_dict({name: value.float() for name, value in state.items()}, strict=False)
    pixels = image(32, 32)
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    normal = torch.from_numpy(((pixels / 255 - mean) / std).astype(np.float32)).permute(2, 0, 1)[None]
    for prompt in PROMPTS:
        ids = tokenizer(prompt, padding="max_length", truncation=True, max_length=77, return_tensors="pt")
        output = model(**ids, pixel_values=normal)
        cosine = torch.nn.functional.cosine_similarity(output.text_embeds, output.image_embeds).item()
        yield {"prompt": prompt, "size": [32, 32], "value": 100 * cosine}


def main():
    """Write the values."""
    ssim, psnr = [], []
    for width, height in SIZES:
        for amplitude in (1, 40):
            first = image(width, height)
            second = noisy(first, amplitude)
            kind = {"size": [width, height], "amplitude": amplitude}
            options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
            value = structural_similarity(first, second, data_range=255, channel_axis=2, **options)
            ssim.append({**kind, "value": value})
            psnr.append({**kind, "value": peak_signal_noise_ratio(first, second, data_range=255)})
    values = {
        "psnr": psnr, "ssim": ssim, "clip": list(clip_folder()),
        "alex": list(lpips_values("alex")), "vgg": list(lpips_values("vgg")),
    }
    (FOLDER / "values.json").write_text(json.dumps(values, indent=1) + "\n")


main()
