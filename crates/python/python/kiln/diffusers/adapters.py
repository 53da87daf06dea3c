"""What a pipeline adds to its model: LoRAs, embeddings, IP-Adapters, FreeU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from kiln.diffusers.arguments import known, numbers, repository, without_harmless
from kiln.diffusers.embeddings import TextualInversions
from kiln.diffusers.loras import Loras
from kiln.errors import RequestError


class Adapters(Loras, TextualInversions):
    """The methods of a pipeline for IP-Adapters and FreeU, besides those for LoRAs and embeddings."""

    #: The files of IP-Adapters, each with the folder of its encoder, and their strengths.
    _ip_adapters: list[tuple[str, str | None]]
    _ip_scales: list[float]
    _freeu: str | None

    def __init__(self) -> None:
        Loras.__init__(self)
        self._keep(_embeddings={}, _ip_adapters=[], _ip_scales=[], _freeu=None)

    def load_ip_adapter(
        self,
        pretrained_model_name_or_path_or_dict: str | os.PathLike[str],
        subfolder: str | Sequence[str],
        weight_name: str | Sequence[str],
        image_encoder_folder: str | None = "image_encoder",
        **arguments: Any,
    ) -> None:
        """Adds IP-Adapters: files in a folder, or on the Hugging Face Hub.

        `image_encoder_folder` is in the subfolder, or, with a `/`, in the folder; None is for the encoder that Kiln finds.
        """
        known("load_ip_adapter", without_harmless(arguments), ("local_files_only", "revision"))
        self._change("load_ip_adapter")
        path = repository(pretrained_model_name_or_path_or_dict, arguments.get("local_files_only"))
        if arguments.get("revision"):
            path += f"@{arguments['revision']}"
        names = [weight_name] if isinstance(weight_name, str) else list(weight_name)
        folders = [subfolder] * len(names) if isinstance(subfolder, str) else list(subfolder)
        if len(folders) != len(names):
            raise RequestError(f"`subfolder` has {len(folders)} names, expected {len(names)}, one for each file", "subfolder")
        adapters: list[tuple[str, str | None]] = []
        for folder, name in zip(folders, names, strict=True):
            where = "/".join(part for part in (path, folder) if part)
            encoder = None
            # Of the Hub, Kiln fetches the encoder that belongs to the file.
            if image_encoder_folder is not None and not path.startswith("hf:"):
                encoder = f"{path if '/' in image_encoder_folder else where}/{image_encoder_folder}"
            adapters.append((f"{where}/{name}", encoder))
        self._keep(_ip_adapters=adapters, _ip_scales=[1.0] * len(names))

    def set_ip_adapter_scale(self, scale: float | Sequence[float]) -> None:
        """Sets the strengths of the IP-Adapters."""
        self._change("set_ip_adapter_scale")
        self._keep(_ip_scales=numbers("scale", scale, len(self._ip_adapters), "IP-Adapter"))

    def unload_ip_adapter(self) -> None:
        """Takes all IP-Adapters away."""
        self._change("unload_ip_adapter")
        self._keep(_ip_adapters=[], _ip_scales=[])

    def enable_freeu(self, s1: float, s2: float, b1: float, b2: float) -> None:
        """Amplifies the features of the way up by `b1` and `b2`, and the low frequencies of skip connections by `s1` and `s2`."""
        self._change("enable_freeu")
        self._keep(_freeu=f"{b1},{b2},{s1},{s2}")

    def disable_freeu(self) -> None:
        """Ends FreeU."""
        self._change("disable_freeu")
        self._keep(_freeu=None)

    def _of_adapters(self, scale: float, image: Any) -> dict[str, Any]:
        """The fields of a request. `scale` is of all LoRAs that are not fused, `image` one for each IP-Adapter."""
        return {
            "loras": self._lora_fields(scale),
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
