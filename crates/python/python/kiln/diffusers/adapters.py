"""What a pipeline adds to its model: LoRAs, IP-Adapters, FreeU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from kiln.diffusers.arguments import numbers, repository
from kiln.errors import RequestError


class Adapters:
    """The methods of a pipeline for LoRAs, IP-Adapters and FreeU."""

    def __init__(self) -> None:
        #: By their names: the file, and the strength.
        self._loras: dict[str, tuple[str, float]] = {}
        self._has_loras = True
        #: The files of IP-Adapters, each with the folder of its encoder, and their strengths.
        self._ip_adapters: list[tuple[str, str | None]] = []
        self._ip_scales: list[float] = []
        self._freeu: str | None = None

    def load_lora_weights(
        self,
        pretrained_model_name_or_path_or_dict: str | os.PathLike[str],
        *,
        weight_name: str | None = None,
        adapter_name: str | None = None,
    ) -> None:
        """Adds a LoRA: a file, or `weight_name` in a folder or on the Hugging Face Hub."""
        if isinstance(pretrained_model_name_or_path_or_dict, dict):
            name = "pretrained_model_name_or_path_or_dict"
            raise RequestError(f"`{name}` is a dict, expected a file: Kiln reads the weights", name)
        path = repository(pretrained_model_name_or_path_or_dict)
        if weight_name:
            path = f"{path}/{weight_name}"
        # Another pipeline of `from_pipe` keeps its own.
        self._loras = {**self._loras, adapter_name or f"default_{len(self._loras)}": (path, 1.0)}

    def set_adapters(self, adapter_names: str | Sequence[str], adapter_weights: float | Sequence[float] | None = None) -> None:
        """Sets the strengths of LoRAs; those that are not named get 0."""
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        given = numbers("adapter_weights", 1.0 if adapter_weights is None else adapter_weights, len(names), "LoRA")
        weights = dict(zip(names, given, strict=True))
        self._check_loras(names)
        self._loras = {name: (path, weights.get(name, 0.0)) for name, (path, _) in self._loras.items()}

    def get_active_adapters(self) -> list[str]:
        """The names of the LoRAs that act."""
        return [name for name, (_, weight) in self._loras.items() if weight and self._has_loras]

    def delete_adapters(self, adapter_names: str | Sequence[str]) -> None:
        """Takes LoRAs away."""
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        self._check_loras(names)
        self._loras = {name: lora for name, lora in self._loras.items() if name not in names}

    def disable_lora(self) -> None:
        """Leaves all LoRAs out until `enable_lora`."""
        self._has_loras = False

    def enable_lora(self) -> None:
        """Has LoRAs act again."""
        self._has_loras = True

    def fuse_lora(self, *, lora_scale: float = 1.0) -> None:
        """Multiplies the strengths by `lora_scale`. Kiln adds LoRAs to the weights always."""
        self._loras = {name: (path, weight * lora_scale) for name, (path, weight) in self._loras.items()}

    def unload_lora_weights(self) -> None:
        """Takes all LoRAs away."""
        self._loras = {}

    def _check_loras(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._loras:
                raise RequestError(f"`adapter_names` has {name!r}, expected of {', '.join(self._loras) or 'none'}", "adapter_names")

    def load_ip_adapter(
        self,
        pretrained_model_name_or_path_or_dict: str | os.PathLike[str],
        subfolder: str | Sequence[str],
        weight_name: str | Sequence[str],
        image_encoder_folder: str | None = "image_encoder",
    ) -> None:
        """Adds IP-Adapters: files in a folder, or on the Hugging Face Hub.

        `image_encoder_folder` is in the subfolder, or, with a `/`, in the folder; None is for the encoder that Kiln finds.
        """
        path = repository(pretrained_model_name_or_path_or_dict)
        names = [weight_name] if isinstance(weight_name, str) else list(weight_name)
        folders = [subfolder] * len(names) if isinstance(subfolder, str) else list(subfolder)
        if len(folders) != len(names):
            raise RequestError(f"`subfolder` has {len(folders)} names, expected {len(names)}, one for each file", "subfolder")
        self._ip_adapters = []
        for folder, name in zip(folders, names, strict=True):
            where = "/".join(part for part in (path, folder) if part)
            encoder = None
            # Of the Hub, Kiln fetches the encoder that belongs to the file.
            if image_encoder_folder is not None and not path.startswith("hf:"):
                encoder = f"{path if '/' in image_encoder_folder else where}/{image_encoder_folder}"
            self._ip_adapters.append((f"{where}/{name}", encoder))
        self._ip_scales = [1.0] * len(names)

    def set_ip_adapter_scale(self, scale: float | Sequence[float]) -> None:
        """Sets the strengths of the IP-Adapters."""
        self._ip_scales = numbers("scale", scale, len(self._ip_adapters), "IP-Adapter")

    def unload_ip_adapter(self) -> None:
        """Takes all IP-Adapters away."""
        self._ip_adapters, self._ip_scales = [], []

    def enable_freeu(self, s1: float, s2: float, b1: float, b2: float) -> None:
        """Amplifies the features of the way up by `b1` and `b2`, and the low frequencies of skip connections by `s1` and `s2`."""
        self._freeu = f"{b1},{b2},{s1},{s2}"

    def disable_freeu(self) -> None:
        """Ends FreeU."""
        self._freeu = None

    def _of_adapters(self, scale: float, image: Any) -> dict[str, Any]:
        """The fields of a request. `scale` is of all LoRAs, `image` one for each IP-Adapter."""
        strengths = [(path, weight * scale) for path, weight in self._loras.values() if self._has_loras]
        return {
            "loras": [f"{path}:{strength}" for path, strength in strengths if strength] or None,
            "ip_adapters": self._image_prompts(image) or None,
            "freeu": self._freeu,
        }

    def _image_prompts(self, image: Any) -> list[dict[str, Any]]:
        images = list(image) if isinstance(image, (list, tuple)) else [] if image is None else [image]
        if len(images) != len(self._ip_adapters):
            expected = f"{len(self._ip_adapters)}, one for each adapter of load_ip_adapter"
            raise RequestError(f"`ip_adapter_image` has {len(images)} images, expected {expected}", "ip_adapter_image")
        prompts = []
        for (path, encoder), weight, one in zip(self._ip_adapters, self._ip_scales, images, strict=True):
            several = list(one) if isinstance(one, (list, tuple)) else [one]  # of one adapter
            prompts += [{"model": path, "encoder": encoder, "image": each, "weight": weight} for each in several]
        return [{name: value for name, value in prompt.items() if value is not None} for prompt in prompts]
