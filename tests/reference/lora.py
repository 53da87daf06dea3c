"""LoRA files of every dialect for the tiny models, and the weights that they make.

The changes are random. What they make of a weight is computed by the packages that define them: diffusers and PEFT, which
load the file and merge it; LyCORIS' modules; and for kohya's and cloneofsimo's files by their formula, which is written
out here.

Writes `tests/fixtures/lora/{kind}/{dialect}.safetensors` (for PEFT a folder) and `merged_{kind}.safetensors`. README.md
lists the keys.
"""

import copy
import json
import logging
import shutil
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from safetensors.torch import load_file

from common import FIXTURES, MODELS, load_json, load_text, load_unet, randn, save_json, save_safetensors

logging.disable(logging.WARNING)

LORA = FIXTURES / "lora"
KINDS = ("sd1", "sdxl")
STRENGTH = 0.8
# Of every merged weight, one in this many values is stored. It divides no layer's width, so that all rows and columns occur.
STRIDE = 7

# The layers that change: projections, a feed-forward layer, convolutions of 1x1 and 3x3.
UNET = [
    "down_blocks.1.attentions.0.proj_in",
    "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q",
    "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_out.0",
    "mid_block.attentions.0.transformer_blocks.0.ff.net.0.proj",
    "down_blocks.0.resnets.0.conv1",
    "down_blocks.1.downsamplers.0.conv",
]
# CompVis' names of the same layers in `sdxl`, which has one residual block a level: counted by hand.
SGM = [
    "input_blocks.3.1.proj_in",
    "input_blocks.3.1.transformer_blocks.0.attn1.to_q",
    "input_blocks.3.1.transformer_blocks.0.attn2.to_out.0",
    "middle_block.1.transformer_blocks.0.ff.net.0.proj",
    "input_blocks.1.0.in_layers.2",
    "input_blocks.4.0.op",
]
TEXT = ["encoder.layers.0.self_attn.q_proj", "encoder.layers.1.self_attn.out_proj", "encoder.layers.1.mlp.fc1"]
# Only LyCORIS changes normalizations.
NORM = "down_blocks.0.resnets.0.norm1"


def networks(kind):
    """The networks of a tiny model by diffusers' names."""
    found = {"unet": load_unet(MODELS / kind / "unet")}
    for i, (_, encoder) in enumerate(load_text(kind)):
        found["text_encoder" + ("" if i == 0 else "_2")] = encoder
    return found


def layers(nets):
    """`(network, declared name, module)` of every layer that changes."""
    for name, net in nets.items():
        for path in UNET if name == "unet" else TEXT:
            module = dict(net.named_modules())
            inside = path if path in module else f"text_model.{path}"
            declared = path if name == "unet" else f"text_model.{path}"
            yield name, declared, module[inside]


def random_(parameters, *parts, scale=0.2):
    """Fills parameters with numbers that depend on their names alone."""
    for name, parameter in parameters:
        parameter.data = scale * randn(parameter.shape, "lora", *parts, name)


def kohya_prefix(net, kind):
    """The prefix of kohya's names."""
    if net == "unet":
        return "lora_unet_"
    return {"sd1": "lora_te_", "sdxl": "lora_te1_" if net == "text_encoder" else "lora_te2_"}[kind]


def low_rank(weight, up, down, mid, scale):
    """kohya's merge of a low-rank change: a product, or a convolution of the factors."""
    if weight.dim() == 2 or (mid is None and down.shape[2:] == (1, 1)):
        return weight + scale * (up.flatten(1) @ down.flatten(1)).reshape(weight.shape)
    if mid is not None:
        down = torch.einsum("p q k l, q i -> p i k l", mid, down.flatten(1))
    return weight + scale * F.conv2d(down.permute(1, 0, 2, 3), up).permute(1, 0, 2, 3)


def kohya(nets, kind, sgm=False):
    """kohya's scripts: up and down, alpha, with a middle factor in one convolution."""
    file, merged = {}, {}
    unet_names = dict(zip(UNET, SGM))
    for i, (net, path, module) in enumerate(layers(nets)):
        weight, rank, name = module.weight, 2 + i % 3, path
        out, inside, *kernel = weight.shape
        mid = None
        parts = ("kohya", kind, net, path)
        if path == "down_blocks.1.downsamplers.0.conv":
            mid = 0.2 * randn((rank, rank, *kernel), *parts, "mid")
            kernel = [1, 1]
        up = 0.2 * randn((out, rank, *(1 for _ in kernel)), *parts, "up")
        down = 0.2 * randn((rank, inside, *kernel), *parts, "down")
        alpha = torch.tensor(float(1 + i))
        if sgm and net == "unet":
            name = unet_names[path]
        key = kohya_prefix(net, kind) + name.replace(".", "_")
        file |= {f"{key}.lora_up.weight": up, f"{key}.lora_down.weight": down, f"{key}.alpha": alpha}
        if mid is not None:
            file[f"{key}.lora_mid.weight"] = mid
        merged[f"{net}.{path}.weight"] = low_rank(weight, up, down, mid, STRENGTH * float(alpha) / rank)
    return file, merged


def cloneofsimo(nets):
    """Numbered layers, in the order in which PyTorch walks through today's classes."""
    file, metadata, merged = {}, {}, {}
    for net, classes, searched in (
        ("unet", ("Attention", "GEGLU"), nets["unet"]),
        ("text_encoder", ("CLIPAttention",), nets["text_encoder"]),
    ):
        paths = {module: path for path, module in searched.named_modules()}
        ancestors = [module for module in searched.modules() if type(module).__name__ in classes]
        found = [m for ancestor in ancestors for m in ancestor.modules() if isinstance(m, torch.nn.Linear)]
        for number, module in enumerate(found):
            parts = ("cloneofsimo", net, str(number))
            out, inside = module.weight.shape
            up, down = 0.2 * randn((out, 1), *parts, "up"), 0.2 * randn((1, inside), *parts, "down")
            file |= {f"{net}:{number}:up": up.half(), f"{net}:{number}:down": down.half()}
            metadata[f"{net}:{number}:rank"] = "1"
            path = paths[module]
            path = path if net == "unet" or path.startswith("text_model.") else f"text_model.{path}"
            if number % 9 == 4:  # a few are enough
                delta = up.half().float() @ down.half().float()
                merged[f"{net}.{path}.weight"] = module.weight + STRENGTH * delta
        metadata[net] = json.dumps(list(classes))
    file["<s1>"] = randn((nets["text_encoder"].config.hidden_size,), "cloneofsimo", "s1")
    metadata["<s1>"] = "<embed>"
    return file, metadata, merged


def fused(nets, kind, file):
    """The weights that diffusers changes when it merges the file into a model."""
    cls = {"sd1": StableDiffusionPipeline, "sdxl": StableDiffusionXLPipeline}[kind]
    extra = {"safety_checker": None} if kind == "sd1" else {}
    pipe = cls.from_pretrained(MODELS / kind, dtype=torch.float32, **extra)
    pipe.load_lora_weights(dict(file))
    pipe.fuse_lora(components=list(nets), lora_scale=STRENGTH)
    pipe.unload_lora_weights()
    changed = {name: getattr(pipe, name) for name in nets}
    pairs = zip(layers(nets), layers(changed))
    return {f"{net}.{path}.weight": new.weight for (net, path, old), (_, _, new) in pairs
            if not torch.equal(old.weight, new.weight)}


def diffusers_file(nets, kind, old):
    """diffusers' names, before and since it uses PEFT. The first ones know the projections of attention alone."""
    file = {}
    for net, path, module in layers(nets):
        out, inside, *kernel = module.weight.shape
        attention = path.split(".")[-1] in ("to_q", "q_proj", "out_proj") or path.endswith("to_out.0")
        if old and not attention:
            continue
        parts = ("diffusers", kind, net, path)
        up = 0.2 * randn((out, 3, *(1 for _ in kernel)), *parts, "up")
        down = 0.2 * randn((3, inside, *kernel), *parts, "down")
        if not old:
            short = path.removeprefix("text_model.")
            inner = path if net == "unet" or not hasattr(nets[net], "encoder") else short
            file |= {f"{net}.{inner}.lora_B.weight": up, f"{net}.{inner}.lora_A.weight": down}
        elif net == "unet":
            parent, last = path.removesuffix(".0").rsplit(".", 1)
            file |= {f"{net}.{parent}.processor.{last}_lora.up.weight": up}
            file |= {f"{net}.{parent}.processor.{last}_lora.down.weight": down}
        else:
            file |= {f"{net}.{path}.lora_linear_layer.up.weight": up}
            file |= {f"{net}.{path}.lora_linear_layer.down.weight": down}
    return file


def peft(nets, config, *parts):
    """PEFT's own folder for the denoiser, and what merging it makes."""
    model = get_peft_model(copy.deepcopy(nets["unet"]), config)
    trained = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
    random_(trained, *parts, scale=0.2 if isinstance(config, LoraConfig) else 0.6)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        file = load_file(Path(folder) / "adapter_model.safetensors")
        settings = load_json(Path(folder) / "adapter_config.json")
    kept = ("alpha", "alpha_pattern", "lora_alpha", "peft_type", "r", "rank_pattern", "use_dora", "use_rslora")
    settings = {key: settings[key] for key in kept if key in settings}
    whole = model.merge_and_unload()
    merged = {f"unet.{path}.weight": dict(whole.named_modules())[path].weight for path in UNET}
    return file, settings, merged


def lycoris(nets, kind, make, strength=STRENGTH, paths=None):
    """Modules of LyCORIS over some layers. `make` gives the module of a layer."""
    file, merged = {}, {}
    for i, (net, path, module) in enumerate(layers(nets)):
        name = kohya_prefix(net, kind) + path.replace(".", "_")
        adapter = make(i, name, module)
        if adapter is None:
            continue
        # These multiply up to four factors.
        scale = 0.6 if type(adapter).__name__ in ("LohaModule", "LokrModule") else 0.2
        random_(adapter.named_parameters(), kind, type(adapter).__name__, name, scale=scale)
        file |= {f"{name}.{key}": value for key, value in adapter.state_dict().items()}
        if hasattr(adapter, "get_weight"):
            # What the forward of LoHa and LoKr does: their `get_diff_weight` multiplies by the scale twice.
            weight = module.weight + strength * adapter.get_weight(module.weight.shape)
        else:
            weight = adapter.get_merged_weight(strength, module.weight.shape)[0]
        merged[f"{net}.{path}.weight"] = weight
    return file, merged


def lycoris_modules():
    """`dialect: (make, strength)`."""
    from lycoris.modules.boft import ButterflyOFTModule
    from lycoris.modules.diag_oft import DiagOFTModule
    from lycoris.modules.locon import LoConModule
    from lycoris.modules.loha import LohaModule
    from lycoris.modules.lokr import LokrModule

    def locon(i, name, module):
        return LoConModule(name, module, lora_dim=3, alpha=2, use_tucker=i % 2 == 1, rs_lora=i % 3 == 2)

    def dora(i, name, module):
        return LoConModule(name, module, lora_dim=3, alpha=2, weight_decompose=True, wd_on_out=i % 2 == 0)

    def loha(i, name, module):
        return LohaModule(name, module, lora_dim=2, alpha=1.5, use_tucker=i % 2 == 1)

    def lokr(i, name, module):
        return LokrModule(name, module, lora_dim=1, alpha=0.5, use_tucker=i % 2 == 1, decompose_both=i % 3 == 0,
                          full_matrix=i == 2)

    def oft(i, name, module):
        return DiagOFTModule(name, module, lora_dim=4, constraint=0.01 if i % 2 else 0, rescaled=i % 3 == 1)

    def boft(i, name, module):
        if module.weight.shape[0] == 72:  # has no butterfly of this size
            return None
        return ButterflyOFTModule(name, module, lora_dim=10, constraint=0.01 if i % 2 else 0, rescaled=i % 3 == 1)

    return {"locon": (locon, STRENGTH), "dora": (dora, 1.0), "loha": (loha, STRENGTH), "lokr": (lokr, STRENGTH),
            "oft": (oft, STRENGTH), "boft": (boft, STRENGTH)}


def full(nets):
    """LyCORIS' plain differences: a weight, its bias, a normalization."""
    file, merged = {}, {}
    modules = dict(nets["unet"].named_modules())
    for path, weight, bias in ((UNET[4], "diff", "diff_b"), (NORM, "w_norm", "b_norm")):
        for role, name in ((weight, "weight"), (bias, "bias")):
            value = getattr(modules[path], name)
            diff = 0.1 * randn(value.shape, "full", path, role)
            file[f"lora_unet_{path.replace('.', '_')}.{role}"] = diff
            merged[f"unet.{path}.{name}"] = value + STRENGTH * diff
    return file, merged


def old_oft(nets):
    """LyCORIS' first OFT stored the rotations themselves."""
    file, merged = {}, {}
    for net, path, module in layers(nets):
        if net != "unet":
            continue
        out = module.weight.shape[0]
        q = 0.2 * randn((out // 4, 4, 4), "old_oft", path)
        q = q - q.transpose(1, 2)
        r = torch.linalg.solve(torch.eye(4) - q, torch.eye(4) + q)
        file[f"lora_unet_{path.replace('.', '_')}.oft_diag"] = r
        turned = torch.eye(4) + STRENGTH * (r - torch.eye(4))
        weight = module.weight.reshape(out // 4, 4, -1)
        merged[f"unet.{path}.weight"] = torch.einsum("k n m, k n d -> k m d", turned, weight).reshape(module.weight.shape)
    return file, merged


def embedding():
    """An embedding as AUTOMATIC1111 saves it, and its vectors alone."""
    vectors = randn((2, 32), "embedding")
    whole = {"string_to_token": {"*": 265}, "string_to_param": {"*": vectors}, "name": "embedding", "step": 100,
             "sd_checkpoint": None, "sd_checkpoint_name": None}
    torch.save(whole, LORA / "embedding.pt")
    save_safetensors(LORA / "embedding.safetensors", {"emb_params": vectors})


def main():
    """Write everything."""
    shutil.rmtree(LORA, ignore_errors=True)
    LORA.mkdir()
    embedding()
    for kind in KINDS:
        nets = networks(kind)
        everything, strengths = {}, {}

        def keep(dialect, file, merged, metadata=None, strength=STRENGTH, name=None):
            file = {key: torch.as_tensor(value).float() if not torch.is_tensor(value) else value for key, value in file.items()}
            save_safetensors(LORA / kind / (name or f"{dialect}.safetensors"), file, metadata)
            everything.update({f"{dialect}/{key}": value.flatten()[::STRIDE] for key, value in merged.items()})
            strengths[dialect] = strength

        file, merged = kohya(nets, kind)
        keep("kohya", file, merged)
        if kind == "sdxl":
            file, merged = kohya(nets, kind, sgm=True)
            keep("kohya_sgm", file, merged)
        else:
            file, metadata, merged = cloneofsimo(nets)
            keep("cloneofsimo", file, merged, metadata)
            file, merged = full(nets)
            keep("full", file, merged)
            file, merged = old_oft(nets)
            keep("oft_diag", file, merged)
        for dialect, old in (("diffusers_old", True), ("diffusers", False)):
            file = diffusers_file(nets, kind, old)
            keep(dialect, file, fused(nets, kind, file))
        for dialect, config in (
            ("peft", LoraConfig(r=3, lora_alpha=5, target_modules=UNET, alpha_pattern={"conv1": 2})),
            ("peft_rs", LoraConfig(r=3, lora_alpha=5, target_modules=UNET, use_rslora=True)),
            ("peft_dora", LoraConfig(r=3, lora_alpha=5, target_modules=UNET, use_dora=True)),
            ("peft_loha", LoHaConfig(r=2, alpha=3, target_modules=UNET, use_effective_conv2d=True)),
            ("peft_lokr", LoKrConfig(r=2, alpha=3, target_modules=UNET, use_effective_conv2d=True)),
        ):
            file, settings, merged = peft(nets, config, kind, dialect)
            keep(dialect, file, merged, strength=1.0, name=f"{dialect}/adapter_model.safetensors")
            save_json(LORA / kind / dialect / "adapter_config.json", settings)
        for dialect, (make, strength) in lycoris_modules().items():
            file, merged = lycoris(nets, kind, make, strength)
            keep(dialect, file, merged, strength=strength)
        save_safetensors(LORA / f"merged_{kind}.safetensors", everything, {"strengths": json.dumps(strengths, sort_keys=True)})


if __name__ == "__main__":
    main()
