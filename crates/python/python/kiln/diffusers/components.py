"""Networks that scripts put into a pipeline: an autoencoder, a small autoencoder, a U-Net, a transformer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.diffusers.arguments import dtype, dtypes_of, known, only, repository, same_dtype, without_harmless
from kiln.diffusers.frozen import FrozenConfig
from kiln.errors import RequestError

if TYPE_CHECKING:
    from kiln.diffusers.model import Model

#: Of `from_pretrained`.
_FROM_PRETRAINED = ("torch_dtype", "dtype", "use_safetensors", "variant", "subfolder", "revision", "local_files_only", "config")


class Component:
    """A network in a file or a folder, which the pipeline loads that it is put into."""

    #: The option of an engine that names its file.
    option = ""
    #: The file or the folder.
    path: str
    #: What changes in the engine that has this network, by the name of the option.
    _options: dict[str, Any]
    #: Hears of these changes.
    _changed: Callable[[str, Any], None] | None
    #: The type that a script asked for, until the network is in a pipeline.
    _dtype: str | None
    #: The model that has the network.
    _model: Model | None

    def __init__(self, path: str, asked: str | None = None) -> None:
        self.__dict__.update(path=path, _options={}, _changed=None, _dtype=asked, _model=None)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **arguments: Any) -> Any:
        """A network in a folder, in `subfolder` of it, or `OWNER/NAME` on the Hugging Face Hub."""
        arguments = without_harmless(arguments)
        known(f"{cls.__name__}.from_pretrained", arguments, _FROM_PRETRAINED)
        only("use_safetensors", arguments.get("use_safetensors"), (None, True), "Kiln chooses the files")
        only("variant", arguments.get("variant"), (None, "fp16"), "Kiln chooses the files by the type")
        only("config", arguments.get("config"), (None,), "a component's configuration is in its folder")
        path = repository(pretrained_model_name_or_path, arguments.get("local_files_only"))
        if arguments.get("revision"):
            path += f"@{arguments['revision']}"
        given = arguments.get("dtype", arguments.get("torch_dtype"))
        asked = None if given is None else dtype(given)
        return cls(f"{path}/{arguments['subfolder']}" if arguments.get("subfolder") else path, asked)

    @classmethod
    def from_single_file(cls, pretrained_model_link_or_path_or_dict: str | os.PathLike[str], **arguments: Any) -> Any:
        """A network in one file."""
        return cls.from_pretrained(pretrained_model_link_or_path_or_dict, **arguments)

    @property
    def config(self) -> FrozenConfig:
        """The configuration in its folder."""
        path = Path(self.path, "config.json")
        try:
            return FrozenConfig(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            raise RequestError(f"`config` of {type(self).__name__}: {path} is missing, or is not JSON", "config") from None

    def to(self, *places: Any, **named: Any) -> Any:
        """Nothing changes: a network is where its pipeline is, in the pipeline's type. Another type is an error."""
        asked = dtypes_of((*places, *named.values()))
        if asked is not None and self._model is not None:
            same_dtype(type(self).__name__, asked, self._model.dtype)
        elif asked is not None:
            self.__dict__["_dtype"] = asked
        return self

    def half(self) -> Any:
        """The type float16, which the pipeline has to have."""
        return self.to("f16")

    def float(self) -> Any:
        """The type float32, which the pipeline has to have."""
        return self.to("f32")

    def bfloat16(self) -> Any:
        """The type bfloat16, which the pipeline has to have."""
        return self.to("bf16")

    def eval(self) -> Any:
        """Nothing changes: Kiln trains no networks."""
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Networks are not trained."""
        only("requires_grad", requires_grad, (False,), "Kiln trains no networks")
        return self

    def _set(self, option: str, value: Any) -> None:
        self._options[option] = value
        if self._changed is not None:
            self._changed(option, value)

    def _is_of(self, model: Model, changed: Callable[[str, Any], None]) -> Any:
        """Puts the network into a model, which hears of changes."""
        self.__dict__.update(_changed=changed, _model=model, _dtype=None)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        raise RequestError(f"`{name}` of {type(self).__name__} cannot be set: Kiln would not use it", name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RequestError(f"{type(self).__name__} cannot be called by itself; call a pipeline", type(self).option)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"


class _Autoencoder(Component):
    """What autoencoders have in common."""

    def enable_tiling(self, use_tiling: bool = True) -> None:
        """Decodes in strips, without seams: the image stays as it is."""
        self._set("vae_tiling", True if use_tiling else None)

    def disable_tiling(self) -> None:
        """Decodes in strips only where memory is short."""
        self._set("vae_tiling", None)

    def enable_slicing(self) -> None:
        """Kiln decodes one image at a time in any case."""

    def disable_slicing(self) -> None:
        """Kiln decodes one image at a time in any case."""


class AutoencoderKL(_Autoencoder):
    """An autoencoder (VAE), which replaces the model's: `pipe.vae = AutoencoderKL.from_pretrained(..)`."""

    option = "vae"


class AutoencoderTiny(_Autoencoder):
    """A small autoencoder (TAESD), which replaces the model's and keeps less detail."""

    option = "taesd"


class UNet2DConditionModel(Component):
    """A U-Net, which replaces the model's: `pipe.unet = UNet2DConditionModel.from_pretrained(..)`."""

    option = "unet"


class SD3Transformer2DModel(Component):
    """A transformer of Stable Diffusion 3, which replaces the model's."""

    option = "unet"


class FluxTransformer2DModel(Component):
    """A transformer of FLUX.1, which replaces the model's."""

    option = "unet"


#: The classes that may be assigned to a pipeline's attribute.
CLASSES: Mapping[str, tuple[type[Component], ...]] = {
    "vae": (AutoencoderKL, AutoencoderTiny),
    "unet": (UNet2DConditionModel,),
    "transformer": (SD3Transformer2DModel, FluxTransformer2DModel),
}


def checked(name: str, component: Any) -> Component:
    """A component that a pipeline can take as its attribute `name`."""
    classes = CLASSES[name]
    if not isinstance(component, classes):
        expected = " or ".join(one.__name__ for one in classes)
        raise RequestError(f"`{name}` is a {type(component).__name__}, expected {expected} of kiln.diffusers", name)
    return component


def options_of(components: Mapping[str, Component]) -> Iterator[tuple[str, Any]]:
    """The options of an engine with these components."""
    for name, component in components.items():
        yield component.option, component.path
        yield from component._options.items()
        if name == "vae":
            yield ("taesd" if component.option == "vae" else "vae"), None
