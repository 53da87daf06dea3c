"""What all pipelines have in common: a model, a scheduler, and what a script reads and sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, Unpack

from kiln.diffusers.adapters import Adapters
from kiln.diffusers.arguments import CALL, dtype, known, only, same_dtype, shown, without_harmless
from kiln.diffusers.calls import Calls
from kiln.diffusers.components import Component, checked
from kiln.diffusers.image_processor import VaeImageProcessor
from kiln.diffusers.keywords import PretrainedArguments
from kiln.diffusers.missing import AttributeMissingError
from kiln.diffusers.model import Model
from kiln.diffusers.outputs import Output, StableDiffusionPipelineOutput, StableDiffusionXLPipelineOutput
from kiln.diffusers.progress import Progress
from kiln.diffusers.schedulers import SCHEDULERS, Scheduler
from kiln.engine import Engine
from kiln.errors import FileError, RequestError
from kiln.image import StrPath

#: The attributes without a property that a script may set, in a callback.
_OF_CALLBACKS = ("_guidance_scale", "_interrupt")
#: Attributes of diffusers' pipelines that Kiln does not have, with the reason.
_MISSING = {
    "components": "from_pipe makes another pipeline with the same model",
    "config": "the configuration of each part is its own, as pipe.scheduler.config and pipe.unet.config",
    "text_encoder": "the engine has the text encoders, and takes prompts as text",
    "text_encoder_2": "the engine has the text encoders, and takes prompts as text",
    "text_encoder_3": "the engine has the text encoders, and takes prompts as text",
    "tokenizer": "the engine has the tokenizers, and takes prompts as text",
    "tokenizer_2": "the engine has the tokenizers, and takes prompts as text",
    "tokenizer_3": "the engine has the tokenizers, and takes prompts as text",
    "transformer": "the denoiser is `unet`",
}


class Pipeline(Adapters, Calls):
    """A model that is loaded by its first call."""

    #: The arguments that this pipeline takes besides those of all, with what they are where they are not given.
    _own: Mapping[str, Any] = {}
    #: The arguments that pipelines of this kind take.
    _taken: tuple[str, ...] = CALL
    #: The argument with the strength of LoRAs.
    _scaling = "cross_attention_kwargs"
    #: Further arguments that may be given as None alone.
    _unused: tuple[str, ...] = ()
    #: Whether it has several text encoders, which all get the prompt.
    _is_large = False
    #: The family, of pipelines for flow models.
    _flow: str | None = None
    #: The class of a call's result.
    _result: type[Output] = StableDiffusionPipelineOutput
    _model: Model
    _scheduler: Scheduler | None
    _interrupt: bool
    _guidance_scale: float
    _running: bool
    _values: dict[str, Any]
    _timesteps: int
    _progress: Progress

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if cls._is_large and cls._result is StableDiffusionPipelineOutput:
            cls._result = StableDiffusionXLPipelineOutput

    def __init__(self, model: Model, scheduler: Any = None) -> None:
        super().__init__()
        self._keep(_model=model, _scheduler=None, _interrupt=False, _guidance_scale=7.5, _running=False)
        self._keep(_values={}, _timesteps=0, _progress=Progress())
        if scheduler is not None:
            self.scheduler = scheduler

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: StrPath, **arguments: Unpack[PretrainedArguments]) -> Self:
        """Opens a model: a folder, or `OWNER/NAME` on the Hugging Face Hub."""
        return cls(Model.from_pretrained(pretrained_model_name_or_path, arguments), arguments.get("scheduler"))

    @classmethod
    def from_single_file(cls, pretrained_model_link_or_path: StrPath, **arguments: Any) -> Self:
        """Opens a checkpoint in one file."""
        return cls.from_pretrained(pretrained_model_link_or_path, **arguments)

    @classmethod
    def from_pipe(cls, pipeline: Pipeline, **arguments: Any) -> Self:
        """Another pipeline with the model of this one, which both share, and with its scheduler and adapters.

        `torch_dtype` is another type, `scheduler`, `vae` and `unet` are other parts, of the new pipeline alone.
        """
        arguments = without_harmless(arguments)
        known("from_pipe", arguments, ("torch_dtype", "dtype", "scheduler", "vae", "unet", "transformer", "safety_checker", "feature_extractor"))
        made = cls.__new__(cls)
        made.__dict__.update(pipeline.__dict__)
        made._keep(_interrupt=False, _running=False)
        asked = arguments.pop("dtype", None) or arguments.pop("torch_dtype", None)
        if asked is not None:
            made._keep(_model=made._model.with_dtype(dtype(asked)))
        for name, value in arguments.items():
            if value is not None:
                setattr(made, name, value)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self)
        settable = [one for one in dir(kind) if getattr(getattr(kind, one), "fset", None) is not None]
        if name not in settable and name not in _OF_CALLBACKS:
            expected = f"{', '.join(settable)}, and in a callback _guidance_scale and _interrupt"
            raise RequestError(f"`{name}` of {kind.__name__} cannot be set: Kiln would not use it; it takes {expected}", name)
        if name == "_guidance_scale" and not (isinstance(value, (int, float)) and 0.0 <= value <= 1000.0):
            raise RequestError(f"`{name}` is {shown(value)}, expected a number from 0 to 1000", name)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name in _MISSING:
            raise AttributeMissingError(f"{type(self).__name__} has no `{name}`: {_MISSING[name]}", name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _change(self, name: str) -> None:
        """Refuses a change in a callback that the steps of the call would not see."""
        if self._running:
            raise RequestError(f"`{name}` cannot be changed by a callback; change it before the call", name)

    @property
    def engine(self) -> Engine:
        """Kiln's engine, loaded by the first use."""
        return self._model.engine

    @property
    def device(self) -> str:
        """The device, as text."""
        return self._model.device

    _execution_device = device

    @property
    def dtype(self) -> Any:
        """The type of weights and activations: PyTorch's where the script has imported it, else its name."""
        import sys

        names = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
        name = names.get(self._model.dtype, self._model.dtype)
        return getattr(sys.modules.get("torch"), name, name)

    def to(self, *places: Any, **named: Any) -> Self:
        """Moves the model: a device (`cpu`, `cuda`, `cuda:1`), a type, or both."""
        known("to", named, ("device", "dtype", "torch_device", "torch_dtype", "silence_dtype_warnings"))
        named.pop("silence_dtype_warnings", None)
        self._change("to")
        self._model.to((*places, *(value for value in named.values() if value is not None)))
        return self

    @property
    def scheduler(self) -> Scheduler:
        """The sampler."""
        if self._scheduler is not None:
            return self._scheduler
        if self._model.scheduler is None:
            folder = self.engine.path
            if self._model.scheduler is None:
                raise FileError(f"{folder} is a file, which names no scheduler; set one by from_pretrained of a folder")
        return self._model.scheduler

    @scheduler.setter
    def scheduler(self, scheduler: Any) -> None:
        self._change("scheduler")
        if not isinstance(scheduler, Scheduler):
            raise RequestError("`scheduler` is not one of kiln.diffusers; import it from there", "scheduler")
        of_model = self._model.scheduler.base if self._model.scheduler else None
        ignored = ("_class_name", "_diffusers_version")
        plain = [{key: value for key, value in (base or {}).items() if key not in ignored} for base in (scheduler.base, of_model)]
        if of_model and plain[0] != plain[1]:
            raise RequestError("`scheduler` has another configuration than the model; make it from pipe.scheduler.config", "scheduler")
        if not scheduler.sampler:
            raise RequestError(f"`scheduler` is of a class that Kiln does not have; it has {', '.join(SCHEDULERS)}", "scheduler")
        self._keep(_scheduler=scheduler)

    @property
    def vae(self) -> Component:
        """The autoencoder."""
        return self._model.component("vae")

    @vae.setter
    def vae(self, vae: Any) -> None:
        self._put("vae", vae)

    @property
    def unet(self) -> Component:
        """The U-Net."""
        return self._model.component("unet")

    @unet.setter
    def unet(self, unet: Any) -> None:
        self._put("unet", unet)

    def _put(self, name: str, given: Any) -> None:
        self._change(name)
        component = checked(name, given)
        same_dtype(type(component).__name__, component._dtype, self._model.dtype)
        if self._model.component(name).path != component.path:
            self._keep(_model=self._model.with_component(name, component))

    def _none(self, name: str, value: Any) -> None:
        only(name, value, (None,), "Kiln has none")

    safety_checker = property(lambda self: None, lambda self, value: self._none("safety_checker", value), doc="None.")
    feature_extractor = property(lambda self: None, lambda self, value: self._none("feature_extractor", value), doc="None.")
    image_encoder = property(lambda self: None, lambda self, value: self._none("image_encoder", value), doc="None.")

    @property
    def vae_scale_factor(self) -> int:
        """The pixels that a latent covers in each direction."""
        return 8

    @property
    def image_processor(self) -> VaeImageProcessor:
        """Changes images before and after a call."""
        return VaeImageProcessor(vae_scale_factor=self.vae_scale_factor)

    @property
    def mask_processor(self) -> VaeImageProcessor:
        """Changes masks before a call."""
        return VaeImageProcessor(vae_scale_factor=self.vae_scale_factor)

    @property
    def guidance_scale(self) -> float:
        """The strength of guidance: that of the last call, or of the step that runs."""
        return self._guidance_scale

    @property
    def do_classifier_free_guidance(self) -> bool:
        """Whether steps are guided."""
        return self._guidance_scale > 1.0

    @property
    def num_timesteps(self) -> int:
        """The steps of the call, each with one call of the U-Net."""
        return self._timesteps

    @property
    def interrupt(self) -> bool:
        """Whether a callback has ended the call."""
        return self._interrupt

    @property
    def clip_skip(self) -> int | None:
        """The argument of the call."""
        return self._values.get("clip_skip")

    @property
    def cross_attention_kwargs(self) -> Any:
        """The argument of the call."""
        return self._values.get("cross_attention_kwargs")

    @property
    def guidance_rescale(self) -> float:
        """The argument of the call."""
        return self._values.get("guidance_rescale") or 0.0

    def enable_model_cpu_offload(self, gpu_id: int | None = None, device: str = "cuda") -> None:
        """Keeps one network on the GPU at a time."""
        self.to(device if gpu_id is None else f"{device}:{gpu_id}")
        self._model.set("memory", "medvram")

    def enable_sequential_cpu_offload(self, gpu_id: int | None = None, device: str = "cuda") -> None:
        """Keeps the layers that run next on the GPU."""
        self.to(device if gpu_id is None else f"{device}:{gpu_id}")
        self._model.set("memory", "lowvram")

    def enable_vae_tiling(self) -> None:
        """Decodes in strips, without seams: the image stays as it is."""
        self._model.set("vae_tiling", True)

    def disable_vae_tiling(self) -> None:
        """Decodes in strips only where memory is short."""
        self._model.set("vae_tiling", None)

    def set_progress_bar_config(self, **config: Any) -> None:
        """Options of tqdm for the progress bar; `disable=True` turns it off."""
        self._keep(_progress=Progress(config))

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Kiln does so always, or plans its memory by itself: nothing changes."""

    enable_vae_slicing = disable_vae_slicing = enable_attention_slicing = disable_attention_slicing = _nothing
    enable_xformers_memory_efficient_attention = disable_xformers_memory_efficient_attention = _nothing
    maybe_free_model_hooks = remove_all_hooks = reset_device_map = set_lora_device = _nothing
