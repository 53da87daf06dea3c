"""A subset of diffusers on Kiln: scripts change one import.

    from kiln.diffusers import StableDiffusionPipeline

docs/python.md lists what is taken. Arguments that are not in the list are errors, since an image would differ without a word.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.engine import Engine
from kiln.errors import FileError, RequestError
from kiln.image import Image, ImageLike

__all__ = [
    "AutoPipelineForImage2Image",
    "AutoPipelineForInpainting",
    "AutoPipelineForText2Image",
    "DDIMScheduler",
    "DDPMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSDEScheduler",
    "DiffusionPipeline",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "Generator",
    "HeunDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LCMScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "StableDiffusionImg2ImgPipeline",
    "StableDiffusionInpaintPipeline",
    "StableDiffusionPipeline",
    "StableDiffusionPipelineOutput",
    "StableDiffusionXLImg2ImgPipeline",
    "StableDiffusionXLPipeline",
    "TCDScheduler",
    "UniPCMultistepScheduler",
]


class Generator:
    """A seed, as `torch.Generator` has it, for scripts without PyTorch."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._seed: int | None = None

    def manual_seed(self, seed: int) -> Generator:
        self._seed = seed
        return self

    def initial_seed(self) -> int:
        if self._seed is None:
            raise RequestError("`generator` has no seed; call manual_seed", "generator")
        return self._seed


class _Scheduler:
    """A sampler, with the noise levels of a model's configuration."""

    #: Kiln's name.
    _sampler = ""

    def __init__(self, config: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        self._base = dict(config)
        self._changes = dict(changes)
        self.timesteps: list[float] = []
        self._fields()

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | _Scheduler, **changes: Any) -> Any:
        """The sampler for a model's configuration; `changes` are those of docs/python.md."""
        base = config.config if isinstance(config, _Scheduler) else config
        if isinstance(base, _Config):
            changes = {**{name: base[name] for name in base.changed if name in _KNOWN_CHANGES}, **changes}
            base = base.base
        return cls(base, changes)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], subfolder: str = "", **changes: Any) -> Any:
        """The sampler for the configuration in a model's folder."""
        return cls(_read_config(Path(path, subfolder)), changes)

    @property
    def config(self) -> _Config:
        return _Config(self._base, self._changes, type(self).__name__)

    def _fields(self) -> dict[str, Any]:
        """The fields of a request."""
        changes = {name: value for name, value in self._changes.items() if self._base.get(name) != value}
        sampler = self._sampler
        schedules = {"use_karras_sigmas": "karras", "use_exponential_sigmas": "exponential", "use_beta_sigmas": "beta_sigmas"}
        named = [schedule for name, schedule in schedules.items() if changes.pop(name, False)]
        spacing = changes.pop("timestep_spacing", None)
        if spacing == "trailing":
            named.append("trailing")
        elif spacing is not None:
            raise RequestError(f"`timestep_spacing` is {spacing!r}, expected the model's own, or 'trailing'", "timestep_spacing")
        algorithm = changes.pop("algorithm_type", "dpmsolver++")
        if algorithm == "sde-dpmsolver++" and sampler == "dpmpp_2m":
            sampler = "dpmpp_2m_sde"
        elif algorithm != "dpmsolver++":
            raise RequestError(
                f"`algorithm_type` is {algorithm!r}, expected 'dpmsolver++', or 'sde-dpmsolver++' of DPMSolverMultistepScheduler",
                "algorithm_type",
            )
        if changes.pop("solver_order", 2) != 2:
            raise RequestError("`solver_order` is not 2, which is the order of Kiln's sampler", "solver_order")
        if changes:
            name = next(iter(changes))
            raise RequestError(f"`{name}` of {type(self).__name__} is not one of {', '.join(_KNOWN_CHANGES)}", name)
        if len(named) > 1:
            raise RequestError(f"{' and '.join(named)}, expected one spacing of the noise levels", "scheduler")
        return {"sampler": sampler, **({"scheduler": named[0]} if named else {})}

    def __repr__(self) -> str:
        return f"{type(self).__name__} {json.dumps(dict(self.config))}"


_KNOWN_CHANGES = (
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "timestep_spacing",
    "algorithm_type",
    "solver_order",
)


class _Config(dict[str, Any]):
    """A configuration, with what was changed of the model's."""

    def __init__(self, base: Mapping[str, Any], changes: Mapping[str, Any], name: str) -> None:
        super().__init__({**base, **changes, "_class_name": name})
        self.base = dict(base)
        self.changed = list(changes)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "scheduler_config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}; expected the configuration of a scheduler") from error


def _scheduler(name: str, sampler: str) -> type[_Scheduler]:
    return type(name, (_Scheduler,), {"_sampler": sampler, "__doc__": f"Kiln's sampler `{sampler}`.", "__module__": __name__})


DDIMScheduler = _scheduler("DDIMScheduler", "ddim")
DDPMScheduler = _scheduler("DDPMScheduler", "ddpm")
DEISMultistepScheduler = _scheduler("DEISMultistepScheduler", "deis")
DPMSolverMultistepScheduler = _scheduler("DPMSolverMultistepScheduler", "dpmpp_2m")
DPMSolverSDEScheduler = _scheduler("DPMSolverSDEScheduler", "dpmpp_sde")
EulerAncestralDiscreteScheduler = _scheduler("EulerAncestralDiscreteScheduler", "euler_a")
EulerDiscreteScheduler = _scheduler("EulerDiscreteScheduler", "euler")
HeunDiscreteScheduler = _scheduler("HeunDiscreteScheduler", "heun")
KDPM2AncestralDiscreteScheduler = _scheduler("KDPM2AncestralDiscreteScheduler", "dpm2_a")
KDPM2DiscreteScheduler = _scheduler("KDPM2DiscreteScheduler", "dpm2")
LCMScheduler = _scheduler("LCMScheduler", "lcm")
LMSDiscreteScheduler = _scheduler("LMSDiscreteScheduler", "lms")
PNDMScheduler = _scheduler("PNDMScheduler", "pndm")
TCDScheduler = _scheduler("TCDScheduler", "tcd")
UniPCMultistepScheduler = _scheduler("UniPCMultistepScheduler", "unipc")

_SCHEDULERS: dict[str, type[_Scheduler]] = {scheduler.__name__: scheduler for scheduler in _Scheduler.__subclasses__()}


class StableDiffusionPipelineOutput(tuple[Any, Any]):
    """The images of a call: `output.images`, or `output[0]`."""

    @property
    def images(self) -> Any:
        return self[0]

    @property
    def nsfw_content_detected(self) -> None:
        """Nothing: Kiln has no filter of contents."""
        return self[1]


def _only(name: str, value: Any, allowed: tuple[Any, ...], reason: str) -> None:
    if not any(value is one or value == one for one in allowed):
        raise RequestError(f"`{name}` is {value!r}, expected {' or '.join(map(repr, allowed))}: {reason}", name)


def _unknown(function: str, names: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in names:
        message = f"{function} has no `{name}`; of diffusers' arguments it takes {', '.join(known)}"
        raise RequestError(message, name)


def _dtype(value: Any) -> str:
    if value is None:
        return "f32"
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "auto": "auto", "f32": "f32", "f16": "f16", "bf16": "bf16"}
    name = str(value).removeprefix("torch.")
    if name not in names:
        raise RequestError(f"`torch_dtype` is {value}, expected float32, float16, bfloat16 or auto", "torch_dtype")
    return names[name]


_FROM_PRETRAINED = (
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
)


class _Pipeline:
    """A model that is loaded by its first call, or by `to`."""

    def __init__(self, path: str, dtype: str, options: Mapping[str, Any], scheduler: _Scheduler | None) -> None:
        self._path, self._dtype, self._options = path, dtype, dict(options)
        self._device = "cpu"
        self._engine: Engine | None = None
        self._loras: dict[str, tuple[str, float]] = {}
        self._interrupt = False
        self._base: dict[str, Any] = {}
        self._own: _Scheduler | None = None
        if not path.startswith("hf:") and os.path.isdir(path):
            self._open_scheduler(path)
        if scheduler is not None:
            self.scheduler = scheduler

    def _open_scheduler(self, folder: str) -> None:
        if self._base:
            return
        self._base = _read_config(Path(folder, "scheduler"))
        kind = _SCHEDULERS.get(self._base.get("_class_name", ""), _Scheduler)
        # Its own sampler is the model's: nothing is asked for.
        self._own = kind(self._base, {})

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **arguments: Any) -> Any:
        """Opens a model: a folder, or `OWNER/NAME` on the Hugging Face Hub."""
        name = os.fspath(pretrained_model_name_or_path)
        _unknown("from_pretrained", {key: value for key, value in arguments.items() if key not in _FROM_PRETRAINED}, _FROM_PRETRAINED)
        _only("safety_checker", arguments.get("safety_checker"), (None,), "Kiln has no filter of contents")
        _only("feature_extractor", arguments.get("feature_extractor"), (None,), "Kiln has no filter of contents")
        _only("use_safetensors", arguments.get("use_safetensors"), (None, True), "Kiln chooses the files")
        _only("variant", arguments.get("variant"), (None, "fp16"), "Kiln chooses the files by the type")
        _only("device_map", arguments.get("device_map"), (None, "cpu", "cuda"), "a model runs on one device")
        path = name if os.path.exists(name) or name.startswith("hf:") else f"hf:{name}"
        if arguments.get("revision"):
            path += f"@{arguments['revision']}"
        options = {"offline": True} if arguments.get("local_files_only") else {}
        dtype = _dtype(arguments.get("dtype", arguments.get("torch_dtype")))
        pipeline = cls(path, dtype, options, arguments.get("scheduler"))
        return pipeline.to(arguments["device_map"]) if arguments.get("device_map") else pipeline

    @classmethod
    def from_single_file(cls, path: str | os.PathLike[str], **arguments: Any) -> Any:
        """Opens a checkpoint in one file."""
        return cls.from_pretrained(path, **arguments)

    @classmethod
    def from_pipe(cls, pipeline: _Pipeline) -> Any:
        """Another pipeline with the model of this one, which both share."""
        made = cls(pipeline._path, pipeline._dtype, pipeline._options, None)
        made.__dict__.update(pipeline.__dict__)
        return made

    def to(self, *places: Any, **named: Any) -> Any:
        """Moves the model: a device (`cpu`, `cuda`, `cuda:1`), a type, or both."""
        _unknown("to", {key: value for key, value in named.items() if key not in ("device", "dtype", "torch_device")}, ("device", "dtype"))
        before = (self._device, self._dtype)
        for place in (*places, *named.values()):
            text = str(place)
            if text.startswith("torch.") or text in ("f32", "f16", "bf16"):
                self._dtype = _dtype(place)
            elif text == "cpu" or text.split(":")[0] == "cuda":
                self._device = text
            else:
                raise RequestError(f"`device` is {text!r}, expected cpu, cuda or cuda:N", "device")
        if before != (self._device, self._dtype):
            self._close()
        return self

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @property
    def engine(self) -> Engine:
        """Kiln's engine, loaded by the first use."""
        if self._engine is None:
            self._engine = Engine(self._path, device=self._device, dtype=self._dtype, **self._options)
            if os.path.isdir(self._engine.path):
                self._open_scheduler(self._engine.path)
        return self._engine

    @property
    def device(self) -> str:
        return self._device

    @property
    def scheduler(self) -> _Scheduler:
        if self._own is None:
            folder = self.engine.path
            if self._own is None:
                raise FileError(f"{folder} is a file, which names no scheduler; set one by from_pretrained of a folder")
        return self._own

    @scheduler.setter
    def scheduler(self, scheduler: Any) -> None:
        if not isinstance(scheduler, _Scheduler):
            raise RequestError("`scheduler` is not one of kiln.diffusers; import it from there", "scheduler")
        ignored = ("_class_name", "_diffusers_version")
        plain = [{key: value for key, value in base.items() if key not in ignored} for base in (scheduler._base, self._base)]
        if self._base and plain[0] != plain[1]:
            raise RequestError("`scheduler` has another configuration than the model; make it from pipe.scheduler.config", "scheduler")
        if not scheduler._sampler:
            raise RequestError(f"`scheduler` is of a class that Kiln does not have; it has {', '.join(_SCHEDULERS)}", "scheduler")
        self._own = scheduler

    def _memory(self, memory: str) -> None:
        self._options["memory"] = memory
        self._close()

    def enable_model_cpu_offload(self, device: str = "cuda") -> None:
        """Keeps one network on the GPU at a time."""
        self.to(device)
        self._memory("medvram")

    def enable_sequential_cpu_offload(self, device: str = "cuda") -> None:
        """Keeps the layers that run next on the GPU."""
        self.to(device)
        self._memory("lowvram")

    def enable_vae_tiling(self) -> None:
        """Decodes in strips, without seams: the image stays as it is."""
        self._options["vae_tiling"] = True
        self._close()

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Kiln does so always, or plans its memory by itself: nothing changes."""

    enable_vae_slicing = disable_vae_slicing = enable_attention_slicing = disable_attention_slicing = _nothing
    enable_xformers_memory_efficient_attention = set_progress_bar_config = _nothing

    def load_lora_weights(
        self,
        pretrained_model_name_or_path_or_dict: str | os.PathLike[str],
        *,
        weight_name: str | None = None,
        adapter_name: str | None = None,
    ) -> None:
        """Adds a LoRA: a file, or `weight_name` in a folder or on the Hugging Face Hub."""
        name = os.fspath(pretrained_model_name_or_path_or_dict)
        path = name if os.path.exists(name) or name.startswith("hf:") else f"hf:{name}"
        if weight_name:
            path = f"{path}/{weight_name}"
        self._loras[adapter_name or f"default_{len(self._loras)}"] = (path, 1.0)

    def set_adapters(self, adapter_names: str | Sequence[str], adapter_weights: float | Sequence[float] | None = None) -> None:
        """Sets the strengths of LoRAs; those that are not named get 0."""
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        given = [adapter_weights] * len(names) if isinstance(adapter_weights, (int, float)) else adapter_weights
        weights = dict(zip(names, [1.0] * len(names) if given is None else given, strict=True))
        for name in names:
            if name not in self._loras:
                raise RequestError(f"`adapter_names` has {name!r}, expected of {', '.join(self._loras) or 'none'}", "adapter_names")
        self._loras = {name: (path, weights.get(name, 0.0)) for name, (path, _) in self._loras.items()}

    def unload_lora_weights(self) -> None:
        """Takes all LoRAs away."""
        self._loras = {}

    def _run(
        self,
        fields: Mapping[str, Any],
        *,
        prompt: str | Sequence[str] | None,
        negative_prompt: str | Sequence[str] | None,
        num_images_per_prompt: int | None,
        generator: Any,
        eta: float,
        guidance_scale: float,
        clip_skip: int | None,
        output_type: str | None,
        return_dict: bool,
        cross_attention_kwargs: Mapping[str, Any] | None,
        callback_on_step_end: Callable[..., Any] | None,
        unsupported: Mapping[str, Any],
    ) -> Any:
        for name, value in unsupported.items():
            _only(name, value, (None,), "Kiln does not take it")
        _only("output_type", output_type, ("pil", "np", "pt", "latent"), "these are the results")
        if prompt is None:
            raise RequestError("`prompt` is None, expected a text or a list of texts", "prompt")
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        negatives = negative_prompt if not (negative_prompt is None or isinstance(negative_prompt, str)) else [negative_prompt] * len(prompts)
        if len(negatives) != len(prompts):
            raise RequestError(f"`negative_prompt` has {len(negatives)} texts, expected {len(prompts)}", "negative_prompt")
        per_prompt = num_images_per_prompt or 1
        sampling = self._own._fields() if self._own is not None and self._own._sampler else {}
        if sampling.get("sampler") in ("ddim", "tcd"):
            sampling["eta"] = eta
        elif eta:
            raise RequestError(f"`eta` is {eta}, expected 0 except with DDIMScheduler and TCDScheduler", "eta")
        scale = 1.0
        if cross_attention_kwargs:
            scale = cross_attention_kwargs.get("scale", 1.0)
            rest = [name for name in cross_attention_kwargs if name != "scale"]
            if rest:
                raise RequestError(f"`cross_attention_kwargs` has {rest[0]!r}, expected scale alone", "cross_attention_kwargs")
        request = {
            **fields,
            **sampling,
            "cfg_scale": max(float(guidance_scale), 1.0),
            "clip_skip": None if clip_skip is None else clip_skip + 1,
            "loras": [f"{path}:{weight * scale}" for path, weight in self._loras.values() if weight * scale] or None,
            # Prompts of diffusers are plain text.
            "emphasis": "none",
            "keep_comments": True,
            "literal_prompt": True,
            "literal_negative_prompt": True,
        }
        seeds = _seeds(generator, len(prompts) * per_prompt)
        self._interrupt = False
        images: list[Image] = []
        for number, (text, negative) in enumerate(zip(prompts, negatives, strict=True)):
            of_prompt = {**request, "prompt": text, "negative_prompt": negative}
            for seed, rng, count in _runs(seeds[number * per_prompt : (number + 1) * per_prompt]):
                of_run = {**of_prompt, "seed": seed, "rng": rng, "batch_size": count}
                on_step = self._callback(callback_on_step_end, of_run)
                images += self._made(of_run, on_step)
        _mark_used(generator)
        return self._output(images, output_type, return_dict)

    def _made(self, request: dict[str, Any], on_step: Callable[[int, int], object] | None) -> list[Image]:
        prompt = request.pop("prompt")
        if "init" in request:
            return self.engine.img2img(prompt, request.pop("init"), on_step=on_step, **request)
        return self.engine.txt2img(prompt, on_step=on_step, **request)

    def _callback(self, callback: Callable[..., Any] | None, request: Mapping[str, Any]) -> Callable[[int, int], object] | None:
        if callback is None:
            return None
        timesteps = self.engine.timesteps(**request)
        self.scheduler.timesteps = timesteps

        def on_step(done: int, total: int) -> bool:
            del total
            step = done - 1
            changed = callback(self, step, timesteps[min(step, len(timesteps) - 1)], {})
            if changed:
                raise RequestError(
                    f"`callback_on_step_end` changes {', '.join(changed)}; Kiln's steps cannot be changed, only ended by _interrupt",
                    "callback_on_step_end",
                )
            return not self._interrupt

        return on_step

    def _output(self, images: list[Image], output_type: str | None, return_dict: bool) -> Any:
        if output_type == "pil":
            result: Any = [image.pil() for image in images]
        elif output_type == "latent":
            import torch

            result = torch.cat([image.latents.torch() for image in images if image.latents is not None])
        else:
            import numpy

            result = numpy.stack([image.numpy() for image in images]).astype(numpy.float32) / 255.0
            if output_type == "pt":
                import torch

                result = torch.from_numpy(result.transpose(0, 3, 1, 2).copy())
        return StableDiffusionPipelineOutput((result, None)) if return_dict else (result, None)


def _seeds(generator: Any, count: int) -> list[tuple[int | None, str]]:
    """The seed and the kind of generator of each image; None is for a random one."""
    if generator is None:
        return [(None, "cpu")] * count
    several = generator if isinstance(generator, (list, tuple)) else None
    if several is not None and len(several) != count:
        raise RequestError(f"`generator` has {len(several)} generators, expected {count}, one for each image", "generator")
    for one in several or [generator]:
        _check_unused(one)

    def kind(one: Any) -> str:
        return "cuda" if str(getattr(one, "device", "cpu")).startswith("cuda") else "cpu"

    if several is not None:
        return [(one.initial_seed(), kind(one)) for one in several]
    return [((generator.initial_seed() + i) % 2**64, kind(generator)) for i in range(count)]


def _check_unused(generator: Any) -> None:
    """Refuses a generator of PyTorch that has drawn numbers: Kiln begins with its seed."""
    if isinstance(generator, Generator):
        return
    if not hasattr(generator, "get_state"):
        raise RequestError("`generator` is no torch.Generator and no kiln.diffusers.Generator", "generator")
    import torch

    fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    if not torch.equal(fresh.get_state(), generator.get_state()):
        raise RequestError("`generator` has drawn numbers before; call its manual_seed again", "generator")


def _mark_used(generator: Any) -> None:
    """Has generators of PyTorch draw a number, so that using them again is noticed."""
    for one in generator if isinstance(generator, (list, tuple)) else [generator]:
        if one is not None and not isinstance(one, Generator):
            import torch

            torch.rand((), generator=one, device=one.device)


def _runs(seeds: list[tuple[int | None, str]]) -> list[tuple[int | None, str, int]]:
    """Images that one call makes: seeds one after the other, or all random."""
    runs: list[tuple[int | None, str, int]] = []
    for seed, rng in seeds:
        if runs:
            begin, kind, count = runs[-1]
            follows = seed is None if begin is None else seed == (begin + count) % 2**64
            if follows and kind == rng:
                runs[-1] = (begin, kind, count + 1)
                continue
        runs.append((seed, rng, 1))
    return runs


_CALL = (
    "negative_prompt",
    "num_inference_steps",
    "guidance_scale",
    "num_images_per_prompt",
    "eta",
    "generator",
    "output_type",
    "return_dict",
    "cross_attention_kwargs",
    "guidance_rescale",
    "clip_skip",
    "callback_on_step_end",
    "callback_on_step_end_tensor_inputs",
)
#: Arguments of diffusers that may be given as None alone.
_NONE = (
    "timesteps",
    "sigmas",
    "latents",
    "prompt_embeds",
    "negative_prompt_embeds",
    "pooled_prompt_embeds",
    "negative_pooled_prompt_embeds",
    "ip_adapter_image",
    "ip_adapter_image_embeds",
    "prompt_2",
    "negative_prompt_2",
    "denoising_start",
    "denoising_end",
    "original_size",
    "target_size",
    "padding_mask_crop",
    "masked_image_latents",
)


def _common(function: str, more: Sequence[str], arguments: dict[str, Any], usual: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a request, and the arguments of `_run`."""
    known = (*more, *_CALL)
    _unknown(function, {name: value for name, value in arguments.items() if name not in (*_CALL, *_NONE)}, known)
    unsupported = {name: arguments.pop(name) for name in _NONE if name in arguments}
    values = {**usual, **arguments}
    fields = {
        "steps": values.get("num_inference_steps", 50),
        "guidance_rescale": values.get("guidance_rescale") or None,
    }
    run = {
        "negative_prompt": values.get("negative_prompt"),
        "num_images_per_prompt": values.get("num_images_per_prompt", 1),
        "generator": values.get("generator"),
        "eta": values.get("eta", 0.0),
        "guidance_scale": values.get("guidance_scale", 7.5),
        "clip_skip": values.get("clip_skip"),
        "output_type": values.get("output_type", "pil"),
        "return_dict": values.get("return_dict", True),
        "cross_attention_kwargs": values.get("cross_attention_kwargs"),
        "callback_on_step_end": values.get("callback_on_step_end"),
        "unsupported": unsupported,
    }
    return fields, run


class StableDiffusionPipeline(_Pipeline):
    """Text to image, for Stable Diffusion 1 and 2."""

    #: The strength of guidance where none is given.
    _guidance = 7.5

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        usual = {"guidance_scale": self._guidance}
        fields, run = _common("this pipeline", ("prompt", "height", "width"), arguments, usual)
        return self._run({**fields, "height": height, "width": width}, prompt=prompt, **run)


class StableDiffusionXLPipeline(StableDiffusionPipeline):
    """Text to image, for Stable Diffusion XL."""

    _guidance = 5.0


class StableDiffusionImg2ImgPipeline(_Pipeline):
    """Image to image, for Stable Diffusion 1 and 2. The images have the size of the image."""

    _guidance, _strength = 7.5, 0.8

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        image: ImageLike = None,
        strength: float | None = None,
        **arguments: Any,
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        usual = {"guidance_scale": self._guidance}
        fields, run = _common("this pipeline", ("prompt", "image", "strength"), arguments, usual)
        fields = {**fields, "init": _one_image("image", image), "strength": self._strength if strength is None else strength}
        return self._run(fields, prompt=prompt, **run)


class StableDiffusionXLImg2ImgPipeline(StableDiffusionImg2ImgPipeline):
    """Image to image, for Stable Diffusion XL."""

    _guidance, _strength = 5.0, 0.3


class StableDiffusionInpaintPipeline(_Pipeline):
    """Inpainting: the white part of the mask is made again."""

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        height: int | None = None,
        width: int | None = None,
        strength: float = 1.0,
        **arguments: Any,
    ) -> Any:
        """Makes images; docs/python.md lists the arguments."""
        more = ("prompt", "image", "mask_image", "height", "width", "strength")
        fields, run = _common("this pipeline", more, arguments, {})
        defaults = self.engine.defaults
        fields = {
            **fields,
            "init": _one_image("image", image),
            "mask": _one_image("mask_image", mask_image),
            "height": height or defaults["height"],
            "width": width or defaults["width"],
            "strength": strength,
            "paste_back": False,
        }
        return self._run(fields, prompt=prompt, **run)


def _one_image(name: str, image: ImageLike) -> ImageLike:
    if isinstance(image, (list, tuple)) and len(image) == 1:
        image = image[0]
    if image is None or isinstance(image, (list, tuple)):
        raise RequestError(f"`{name}` is {'not given' if image is None else 'a list'}, expected one image", name)
    return image


class _Auto:
    """Chooses a pipeline by the model's configuration."""

    _kinds: tuple[type[_Pipeline], type[_Pipeline]]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **arguments: Any) -> Any:
        """Opens a model: a folder, or `OWNER/NAME` on the Hugging Face Hub, which is loaded to see what it is."""
        plain, large = cls._kinds
        pipeline = plain.from_pretrained(pretrained_model_name_or_path, **arguments)
        index = Path(pretrained_model_name_or_path, "model_index.json")
        is_large = "XL" in json.loads(index.read_text())["_class_name"] if index.is_file() else pipeline.engine.defaults["family"] == "sdxl"
        return large.from_pipe(pipeline) if is_large else pipeline

    @classmethod
    def from_pipe(cls, pipeline: _Pipeline) -> Any:
        """Another pipeline with the model of this one, which both share."""
        is_large = isinstance(pipeline, (StableDiffusionXLPipeline, StableDiffusionXLImg2ImgPipeline))
        return cls._kinds[is_large].from_pipe(pipeline)


class AutoPipelineForText2Image(_Auto):
    """Text to image, for every model."""

    _kinds = (StableDiffusionPipeline, StableDiffusionXLPipeline)


class DiffusionPipeline(AutoPipelineForText2Image):
    """Text to image, for every model."""


class AutoPipelineForImage2Image(_Auto):
    """Image to image, for every model."""

    _kinds = (StableDiffusionImg2ImgPipeline, StableDiffusionXLImg2ImgPipeline)


class AutoPipelineForInpainting(_Auto):
    """Inpainting, for every model."""

    _kinds = (StableDiffusionInpaintPipeline, StableDiffusionInpaintPipeline)
