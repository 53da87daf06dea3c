"""Arguments of diffusers: those that are taken, those that may be given as they ask for nothing, and errors for others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kiln.errors import FileError, RequestError

#: Of `from_pretrained`.
FROM_PRETRAINED = (
    "torch_dtype",
    "dtype",
    "device_map",
    "revision",
    "local_files_only",
    "variant",
    "use_safetensors",
    "safety_checker",
    "requires_safety_checker",
    "feature_extractor",
    "scheduler",
    "vae",
    "unet",
    "transformer",
    "text_encoder_3",
    "tokenizer_3",
    "config",
)
#: Arguments of `from_pretrained` that change nothing with these values; `...` stands for every value.
HARMLESS: dict[str, tuple[tuple[Any, ...], str]] = {
    "low_cpu_mem_usage": ((...,), ""),
    "offload_state_dict": ((...,), ""),
    "disable_mmap": ((...,), ""),
    "output_loading_info": ((None, False), "nothing is loaded yet"),
    "force_download": ((None, False), "`kiln pull` downloads a model"),
    "resume_download": ((...,), ""),
    "proxies": ((None,), "proxies are those of the environment"),
    "cache_dir": ((None,), "the cache is the one of the environment variable HF_HOME"),
    "token": ((None, False), "a token is read from the environment variable HF_TOKEN"),
    "use_auth_token": ((None, False), "a token is read from the environment variable HF_TOKEN"),
    "mirror": ((None,), "models come from the Hugging Face Hub"),
    "custom_pipeline": ((None,), "Kiln runs no code of a model"),
    "custom_revision": ((None,), "Kiln runs no code of a model"),
    "trust_remote_code": ((None, False), "Kiln runs no code of a model"),
    "use_onnx": ((None, False), "Kiln reads safetensors"),
    "max_memory": ((None,), "memory is planned by the engine"),
    "offload_folder": ((None,), "memory is planned by the engine"),
    "image_encoder": ((None,), "`load_ip_adapter` names the encoder"),
    "add_watermarker": ((None, False), "Kiln has no invisible watermark"),
    "load_safety_checker": ((None, False), "Kiln has no filter of contents"),
    "text_encoder": ((None,), "Kiln reads the model's own"),
    "text_encoder_2": ((None,), "Kiln reads the model's own"),
    "tokenizer": ((None,), "Kiln reads the model's own"),
    "tokenizer_2": ((None,), "Kiln reads the model's own"),
    "quantization_config": ((None,), "`torch_dtype` is the type of the weights"),
}
#: Of every call.
CALL = (
    "prompt",
    "negative_prompt",
    "height",
    "width",
    "num_inference_steps",
    "guidance_scale",
    "num_images_per_prompt",
    "eta",
    "generator",
    "ip_adapter_image",
    "output_type",
    "return_dict",
    "cross_attention_kwargs",
    "guidance_rescale",
    "clip_skip",
    "callback_on_step_end",
    "callback_on_step_end_tensor_inputs",
)
#: Of every call, where they may be given as None alone.
NONE = (
    "timesteps",
    "sigmas",
    "latents",
    "prompt_embeds",
    "negative_prompt_embeds",
    "pooled_prompt_embeds",
    "negative_pooled_prompt_embeds",
    "ip_adapter_image_embeds",
    "prompt_2",
    "negative_prompt_2",
    "denoising_start",
    "denoising_end",
    "padding_mask_crop",
    "masked_image_latents",
    "callback",
    "callback_steps",
)


#: Of every call of a pipeline for flow models.
FLOW_CALL = (
    *(name for name in CALL if name not in ("eta", "cross_attention_kwargs", "guidance_rescale", "ip_adapter_image")),
    "joint_attention_kwargs",
    "max_sequence_length",
)
#: Of every call of a pipeline for flow models, where they may be given as None alone.
FLOW_NONE = (
    "prompt_3",
    "negative_prompt_3",
    "ip_adapter_image",
    "negative_ip_adapter_image",
    "negative_ip_adapter_image_embeds",
    "mu",
)


def shown(value: Any) -> str:
    """A value for a message: of tensors and arrays the kind and the shape, of others their beginning."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} {tuple(shape)}"
    if isinstance(value, (list, tuple, dict, set)) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(shown(one) for one in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def only(name: str, value: Any, allowed: tuple[Any, ...], reason: str) -> None:
    """Refuses a value that is none of the allowed ones."""
    if not any(value is one or (type(value) is type(one) and value == one) for one in allowed):
        raise RequestError(f"`{name}` is {shown(value)}, expected {' or '.join(map(repr, allowed))}: {reason}", name)


def known(function: str, given: Iterable[str], names: Sequence[str]) -> None:
    """Refuses a name that a function does not take."""
    for name in given:
        if name not in names:
            taken = ", ".join(one for one in names if one not in (*NONE, *FLOW_NONE))
            raise RequestError(f"{function} has no `{name}`; of diffusers' arguments it takes {taken}", name)


def without_harmless(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `from_pretrained` that may ask for something; the others are checked."""
    left = {}
    for name, value in arguments.items():
        if name not in HARMLESS:
            left[name] = value
            continue
        allowed, reason = HARMLESS[name]
        if ... not in allowed:
            only(name, value, allowed, reason)
    return left


def dtype(value: Any) -> str:
    """Kiln's name of a type of PyTorch."""
    if value is None:
        return "f32"
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "auto": "auto", "f32": "f32", "f16": "f16", "bf16": "bf16"}
    name = str(value).removeprefix("torch.")
    if name not in names:
        raise RequestError(f"`torch_dtype` is {shown(value)}, expected float32, float16, bfloat16 or auto", "torch_dtype")
    return names[name]


def is_dtype(value: Any) -> bool:
    """Whether an argument of `to` is a type, and not a device."""
    text = str(value)
    return text.startswith("torch.") or text in ("f32", "f16", "bf16")


def dtypes_of(places: Iterable[Any]) -> str | None:
    """The type among the arguments of a network's `to`; None where there is none. Devices are those of the pipeline."""
    return next((dtype(place) for place in places if is_dtype(place)), None)


def same_dtype(kind: str, asked: str | None, pipeline: str) -> None:
    """Refuses a type of a network that is not the one of its pipeline."""
    if asked not in (None, "auto", pipeline):
        reason = "networks have the type of their pipeline, which decodes in a wider one where an image overflows"
        raise RequestError(f"`torch_dtype` of {kind} is {asked}, expected {pipeline}: {reason}", "torch_dtype")


def texts(name: str, value: str | Sequence[str] | None, count: int | None = None) -> list[str | None]:
    """A text for each of `count` prompts; one text is for all."""
    if value is None or isinstance(value, str):
        return [value] * (1 if count is None else count)
    found = list(value)
    if count is not None and len(found) != count:
        raise RequestError(f"`{name}` has {len(found)} texts, expected {count}", name)
    return found  # type: ignore[return-value]


def images(name: str, value: Any, count: int) -> list[Any]:
    """An image for each of `count` prompts; one image is for all."""
    if value is None:
        raise RequestError(f"`{name}` is not given, expected one image", name)
    found = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(found) == 1:
        return found * count
    if len(found) != count:
        raise RequestError(f"`{name}` has {len(found)} images, expected 1 or {count}, one for each prompt", name)
    return found


def numbers(name: str, value: Any, count: int, of: str) -> list[float]:
    """A number for each of `count` networks; one number is for all."""
    if isinstance(value, (int, float)):
        return [float(value)] * count
    if not isinstance(value, (list, tuple)) or len(value) != count or not all(isinstance(one, (int, float)) for one in value):
        raise RequestError(f"`{name}` is {shown(value)}, expected a number, or a list of {count}, one for each {of}", name)
    return [float(one) for one in value]


def repository(name: Any, is_local: bool | None = None) -> str:
    """What `from_pretrained` names: a path that is there, or `hf:OWNER/NAME`, where it need not be local."""
    try:
        path = os.fspath(name)
    except TypeError:
        message = f"`pretrained_model_name_or_path` is {shown(name)}, expected a path or OWNER/NAME"
        raise RequestError(message, "pretrained_model_name_or_path") from None
    if os.path.exists(path):
        return path
    if is_local:
        raise FileError(f"{path}: not found; with `local_files_only`, expected a file or a folder")
    return path if path.startswith("hf:") else f"hf:{path}"


def request_scale(field: str, arguments: Mapping[str, Any] | None) -> float:
    """The strength of LoRAs in `cross_attention_kwargs` or `joint_attention_kwargs`, which is named."""
    for name in arguments or {}:
        if name != "scale":
            raise RequestError(f"`{field}` has {name!r}, expected scale alone", field)
    return float((arguments or {}).get("scale", 1.0))
