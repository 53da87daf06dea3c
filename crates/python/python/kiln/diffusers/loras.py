"""LoRAs of a pipeline: their names, their strengths, and those that are fused into the weights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kiln.diffusers.arguments import known, only, repository, shown, without_harmless
from kiln.diffusers.weight_files import networks_of, write
from kiln.errors import RequestError

#: Of `load_lora_weights`.
_LOAD = ("revision", "subfolder", "local_files_only", "use_safetensors", "hotswap")


@dataclass(frozen=True)
class Lora:
    """A LoRA with its strengths in the U-Net and in the text encoders."""

    path: str
    unet: float = 1.0
    text: float = 1.0
    #: Keeps the file of weights that a script gave as a dict.
    folder: Any = None

    def field(self, scale: float) -> str | None:
        """The LoRA as a request has it; None where it does nothing."""
        text, unet = self.text * scale, self.unet * scale
        if not text and not unet:
            return None
        return f"{self.path}:{unet}" if text == unet else f"{self.path}:{text}:{unet}"

    def times(self, scale: float) -> Lora:
        """The same with other strengths."""
        return replace(self, unet=self.unet * scale, text=self.text * scale)


class Loras:
    """The methods of a pipeline for LoRAs."""

    #: By their names.
    _loras: dict[str, Lora]
    #: Those that are fused, of the same names.
    _fused: dict[str, Lora]
    #: Those that were fused when they were unloaded: they stay.
    _kept: tuple[Lora, ...]
    _has_loras: bool

    def __init__(self) -> None:
        self._keep(_loras={}, _fused={}, _kept=(), _has_loras=True)

    def _keep(self, **values: Any) -> None:
        """Sets attributes of Kiln's own: a script's assignment of them is an error."""
        self.__dict__.update(values)

    def _change(self, name: str) -> None:
        """Refuses a change while a call runs."""

    def load_lora_weights(
        self,
        pretrained_model_name_or_path_or_dict: str | os.PathLike[str] | Mapping[str, Any],
        adapter_name: str | None = None,
        *,
        weight_name: str | None = None,
        prefix: str | None = None,
        **arguments: Any,
    ) -> None:
        """Adds a LoRA: a file, `weight_name` in a folder or on the Hugging Face Hub, or a dict of tensors by their names.

        `prefix` loads the part for one network alone: unet or text_encoder.
        """
        arguments = without_harmless(arguments)
        known("load_lora_weights", arguments, _LOAD)
        only("use_safetensors", arguments.get("use_safetensors"), (None, True), "Kiln chooses the files")
        only("hotswap", arguments.get("hotswap"), (None, False), "load the LoRA under another name")
        only("prefix", prefix, (None, "unet", "transformer", "text_encoder"), "a LoRA has parts for these networks")
        self._change("load_lora_weights")
        given, folder = pretrained_model_name_or_path_or_dict, None
        if isinstance(given, Mapping):
            only("weight_name", weight_name, (None,), "the weights are given")
            folder = tempfile.TemporaryDirectory(prefix="kiln-lora-")
            path = write(os.path.join(folder.name, "weights.safetensors"), given)
        else:
            path = repository(given, arguments.get("local_files_only"))
            if arguments.get("revision"):
                path += f"@{arguments['revision']}"
            path = "/".join(part for part in (path, arguments.get("subfolder"), weight_name) if part)
        name = adapter_name or f"default_{len(self._loras)}"
        if name in self._loras:
            raise RequestError(f"`adapter_name` is {name!r}, which is loaded already; delete it, or choose another name", "adapter_name")
        strengths = {"unet": float(prefix != "text_encoder"), "text": float(prefix not in ("unet", "transformer"))}
        # Another pipeline of `from_pipe` keeps its own.
        self._keep(_loras={**self._loras, name: Lora(path, folder=folder, **strengths)})

    def set_adapters(
        self,
        adapter_names: str | Sequence[str],
        adapter_weights: float | Mapping[str, Any] | Sequence[float | Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Sets the strengths of LoRAs, numbers or dicts with unet and text_encoder; those that are not named get 0."""
        self._change("set_adapters")
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        several = list(adapter_weights) if isinstance(adapter_weights, (list, tuple)) else [adapter_weights] * len(names)
        if len(several) != len(names):
            raise RequestError(f"`adapter_weights` has {len(several)} weights, expected {len(names)}", "adapter_weights")
        self._check(names)
        weights = {name: _strengths(weight) for name, weight in zip(names, several, strict=True)}
        off = {"unet": 0.0, "text": 0.0}
        self._keep(_loras={name: replace(lora, **weights.get(name, off)) for name, lora in self._loras.items()})

    def get_active_adapters(self) -> list[str]:
        """The names of the LoRAs that act."""
        return [name for name, lora in self._loras.items() if (lora.unet or lora.text) and self._has_loras]

    def get_list_adapters(self) -> dict[str, list[str]]:
        """The names of the LoRAs of each network."""
        found: dict[str, list[str]] = {}
        for name, lora in self._loras.items():
            for network in networks_of(lora.path):
                found.setdefault(network, []).append(name)
        return found

    def delete_adapters(self, adapter_names: str | Sequence[str]) -> None:
        """Takes LoRAs away."""
        self._change("delete_adapters")
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        self._check(names)
        self._keep(_loras={name: lora for name, lora in self._loras.items() if name not in names})

    def disable_lora(self) -> None:
        """Leaves all LoRAs out until `enable_lora`."""
        self._change("disable_lora")
        self._keep(_has_loras=False)

    def enable_lora(self) -> None:
        """Has LoRAs act again."""
        self._change("enable_lora")
        self._keep(_has_loras=True)

    def fuse_lora(
        self,
        components: Sequence[str] = (),
        lora_scale: float = 1.0,
        safe_fusing: bool = False,
        adapter_names: Sequence[str] | None = None,
    ) -> None:
        """Fuses LoRAs with their strengths times `lora_scale`: `unload_lora_weights` leaves them, and neither `set_adapters`
        nor the scale of a call changes them until `unfuse_lora`."""
        del safe_fusing  # values that are not finite are an error of every call
        self._change("fuse_lora")
        networks = {"unet", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3"}
        for name in components:
            if name not in networks:
                raise RequestError(f"`components` has {name!r}, expected of {', '.join(sorted(networks))}", "components")
        names = list(self._loras) if adapter_names is None else list(adapter_names)
        self._check(names)
        denoisers = {"unet", "transformer"}
        parts = {
            "unet": not components or bool(denoisers & set(components)),
            "text": not components or bool(set(components) - denoisers),
        }
        for name in names:
            lora = self._loras[name].times(lora_scale)
            fused = replace(lora, unet=lora.unet * parts["unet"], text=lora.text * parts["text"])
            self._keep(_fused={**self._fused, name: fused})

    def unfuse_lora(self, components: Sequence[str] = ()) -> None:
        """Has fused LoRAs be as all others again."""
        del components
        self._change("unfuse_lora")
        self._keep(_fused={})

    def unload_lora_weights(self, reset_to_overwritten_params: bool = False) -> None:
        """Takes all LoRAs away; what is fused stays in the weights."""
        del reset_to_overwritten_params
        self._change("unload_lora_weights")
        self._keep(_kept=(*self._kept, *self._fused.values()), _loras={}, _fused={})

    def _lora_fields(self, scale: float) -> list[str] | None:
        """The LoRAs of a request. `scale` is of all that are not fused."""
        loaded = [
            self._fused[name].field(1.0) if name in self._fused else lora.field(scale) for name, lora in self._loras.items()
        ]
        fields = [lora.field(1.0) for lora in self._kept] + (loaded if self._has_loras else [])
        return [field for field in fields if field] or None

    def _check(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._loras:
                raise RequestError(f"`adapter_names` has {name!r}, expected of {', '.join(self._loras) or 'none'}", "adapter_names")
            if name in self._fused:
                raise RequestError(f"`adapter_names` has {name!r}, which is fused; call unfuse_lora before", "adapter_names")


def _strengths(weight: Any) -> dict[str, float]:
    """The strengths of a weight: None is 1, a number is for all networks."""
    if weight is None:
        return {"unet": 1.0, "text": 1.0}
    if isinstance(weight, (int, float)):
        return {"unet": float(weight), "text": float(weight)}
    if isinstance(weight, Mapping):
        names = {"unet": "unet", "transformer": "unet", "text_encoder": "text", "text_encoder_2": "text", "text_encoder_3": "text"}
        found = {"unet": 1.0, "text": 1.0}
        for name, value in weight.items():
            if name not in names or not isinstance(value, (int, float)):
                expected = "numbers for unet and text_encoder: strengths of single blocks are not taken"
                raise RequestError(f"`adapter_weights` has {name!r} = {shown(value)}, expected {expected}", "adapter_weights")
            found[names[name]] = float(value)
        return found
    raise RequestError(f"`adapter_weights` is {shown(weight)}, expected numbers", "adapter_weights")
