"""What every reference script shares: paths, deterministic writers, model loaders, prompt encoding.

Importing this module fixes PyTorch's thread count and switches gradients off, so that two runs on one
machine give the same bytes.
"""

import json
import os
import struct
import zlib
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import diffusers
import numpy as np
import torch
import transformers
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from diffusers.schedulers.scheduling_dpmsolver_multistep import DPMSolverMultistepScheduler
from diffusers.schedulers.scheduling_euler_ancestral_discrete import EulerAncestralDiscreteScheduler
from diffusers.schedulers.scheduling_euler_discrete import EulerDiscreteScheduler
from diffusers.schedulers.scheduling_heun_discrete import HeunDiscreteScheduler
from diffusers.schedulers.scheduling_lms_discrete import LMSDiscreteScheduler
from diffusers.schedulers.scheduling_pndm import PNDMScheduler
from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

torch.set_num_threads(1)
torch.set_grad_enabled(False)
torch.use_deterministic_algorithms(True)
diffusers.utils.logging.set_verbosity_error()
diffusers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
MODELS = FIXTURES / "models"
STAGES = FIXTURES / "stages"

KINDS = ("sd1", "sd2v", "sdxl")

# --------------------------------------------------------------------------------------------------
# Files

_DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}


def save_safetensors(path, tensors, metadata=None):
    """Write a safetensors file whose bytes depend on its contents alone.

    The safetensors library writes metadata in the order of a randomly seeded hash map; this writer sorts it.
    Tensors are ordered as the library orders them: wider dtypes first, then by name.
    """
    tensors = {name: t.detach().contiguous() for name, t in tensors.items()}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header = {}
    if metadata:
        header["__metadata__"] = dict(sorted(metadata.items()))
    offset = 0
    for name in order:
        t = tensors[name]
        if t.is_floating_point() and not torch.isfinite(t).all():
            raise ValueError(f"{path}: {name} is not finite")
        size = t.numel() * t.element_size()
        header[name] = {
            "dtype": _DTYPES[t.dtype],
            "shape": list(t.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            file.write(tensors[name].numpy().tobytes())


def save_json(path, value, indent=2):
    """Write UTF-8 JSON with a final newline."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def save_json_rows(path, rows):
    """Write an array of objects, one object a line: small, and readable in a diff."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("[\n" + lines + "\n]\n", encoding="utf-8")


def load_json(path):
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def seeded(*parts):
    """A CPU generator whose seed is a hash of `parts`, so that adding a case moves no other case."""
    return torch.Generator("cpu").manual_seed(zlib.crc32("/".join(map(str, parts)).encode()))


def randn(shape, *parts):
    """Normal numbers that depend on `parts` alone."""
    return torch.randn(shape, generator=seeded(*parts))


# --------------------------------------------------------------------------------------------------
# Models, always in f32 whatever the file holds


def load_unet(folder):
    """The U-Net in `folder`."""
    return UNet2DConditionModel.from_pretrained(folder, dtype=torch.float32).eval()


def load_vae(folder):
    """The autoencoder in `folder`."""
    return AutoencoderKL.from_pretrained(folder, dtype=torch.float32).eval()


def load_text_encoder(folder):
    """The text encoder in `folder`: the class that its config names."""
    architecture = load_json(folder / "config.json")["architectures"][0]
    cls = {"CLIPTextModel": CLIPTextModel, "CLIPTextModelWithProjection": CLIPTextModelWithProjection}[architecture]
    return cls.from_pretrained(folder, dtype=torch.float32).eval()


def load_text(kind):
    """The (tokenizer, text encoder) pairs of the pipeline folder `kind`: one, or two for SDXL."""
    root = MODELS / kind
    suffixes = ("", "_2") if kind == "sdxl" else ("",)
    return [
        (CLIPTokenizer.from_pretrained(root / f"tokenizer{s}"), load_text_encoder(root / f"text_encoder{s}"))
        for s in suffixes
    ]


# --------------------------------------------------------------------------------------------------
# Prompts

CHUNK = 75


def chunk_ids(tokenizer, text, chunks=1):
    """Token ids `(n, 77)`: chunks of 75, each with BOS and EOS, padded with the tokenizer's pad token.

    There are at least `chunks` of them; empty ones are BOS, EOS and padding.
    """
    ids = tokenizer(text, add_special_tokens=False, truncation=False).input_ids
    count = max(chunks, -(-len(ids) // CHUNK))
    rows = []
    for i in range(count):
        row = [tokenizer.bos_token_id, *ids[i * CHUNK : (i + 1) * CHUNK], tokenizer.eos_token_id]
        rows.append(row + [tokenizer.pad_token_id] * (CHUNK + 2 - len(row)))
    return torch.tensor(rows, dtype=torch.int64)


def run_text_encoder(encoder, ids):
    """Every output of a text encoder for `ids` `(n, 77)`.

    `hidden`: embeddings, then the output of each layer; `last`: the final layer norm's output; `pooled`: its row
    at the end token, projected where the model has a projection.
    """
    out = encoder(ids, output_hidden_states=True)
    hidden = list(out.hidden_states)
    assert len(hidden) == encoder.config.num_hidden_layers + 1
    pooled = out.text_embeds if hasattr(out, "text_embeds") else out.pooler_output
    return {"hidden": hidden, "last": out.last_hidden_state, "pooled": pooled}


def encode_prompt(pairs, text, chunks=1):
    """The conditioning of one prompt: context `(1, 77 n, d)` and, for two encoders, the pooled vector `(1, p)`.

    One encoder: the last hidden state. Two (SDXL): the penultimate hidden states side by side, and the first
    chunk's pooled output of the second encoder.
    """
    outs = [run_text_encoder(encoder, chunk_ids(tokenizer, text, chunks)) for tokenizer, encoder in pairs]
    if len(pairs) == 1:
        return outs[0]["last"].flatten(0, 1)[None], None
    context = torch.cat([out["hidden"][-2] for out in outs], dim=-1)
    return context.flatten(0, 1)[None], outs[1]["pooled"][:1]


def chunk_count(pairs, text):
    """How many chunks `text` takes."""
    return max(len(chunk_ids(tokenizer, text)) for tokenizer, _ in pairs)


# Over 75 tokens and over 150 with the tiny vocabulary: two chunks and three or more.
LONG_PROMPT = (
    "a wide painting of an old harbour at dawn, fishing boats with red and green hulls, nets drying on the stone "
    "wall, a man in a yellow coat, gulls over the water, thin clouds lit from below, a lighthouse far away"
)
LONGER_PROMPT = (
    LONG_PROMPT + ", wet cobbles that shine, crates of silver fish, a sleeping dog, two children who wave at the last "
    "ferry, soft light, long shadows, loose brush strokes on rough canvas"
)

# --------------------------------------------------------------------------------------------------
# Samplers

SAMPLERS = {
    "ddim": DDIMScheduler,
    "euler": EulerDiscreteScheduler,
    "euler_a": EulerAncestralDiscreteScheduler,
    "dpmpp_2m": DPMSolverMultistepScheduler,
    "pndm": PNDMScheduler,
    "heun": HeunDiscreteScheduler,
    "lms": LMSDiscreteScheduler,
    "unipc": UniPCMultistepScheduler,
    "ddpm": DDPMScheduler,
}

# The samplers whose class knows `use_karras_sigmas`, and those that know `rescale_betas_zero_snr`.
KARRAS = ("euler", "dpmpp_2m", "heun", "lms", "unipc")
ZERO_SNR = ("ddim", "euler", "euler_a", "dpmpp_2m", "unipc", "ddpm")


class _PolynomialQuadrature:
    """Stands in for `scipy.integrate` in diffusers' LMS sampler, whose integrand is a polynomial of degree <= 3.

    Eight Gauss-Legendre nodes integrate it exactly, so SciPy is not needed and the value does not depend on it.
    """

    nodes, weights = np.polynomial.legendre.leggauss(8)

    @classmethod
    def quad(cls, function, start, end, **_):
        start, end = float(start), float(end)
        half = (end - start) / 2
        points = start + half * (cls.nodes + 1)
        return half * sum(w * float(function(x)) for w, x in zip(cls.weights, points)), 0.0


diffusers.schedulers.scheduling_lms_discrete.integrate = _PolynomialQuadrature


def sampler_config(config, schedule):
    """The folder's scheduler config with the chosen sigma schedule written into it."""
    return {**config, "use_karras_sigmas": True} if schedule == "karras" else dict(config)


def make_sampler(config, sampler=None, schedule="default"):
    """A fresh sampler from a `scheduler_config.json` dictionary; `sampler` None means the folder's own class."""
    cls = SAMPLERS[sampler] if sampler else next(c for c in SAMPLERS.values() if c.__name__ == config["_class_name"])
    return cls.from_config(sampler_config(config, schedule))
