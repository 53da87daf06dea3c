"""What all pipelines have in common: a model, a scheduler, and calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from kiln.diffusers.adapters import Adapters
from kiln.diffusers.arguments import CALL, NONE, known, only, request_scale, texts
from kiln.diffusers.generators import mark_used, runs, seeds
from kiln.diffusers.model import Model
from kiln.diffusers.outputs import TYPES, output
from kiln.diffusers.schedulers import SCHEDULERS, Scheduler
from kiln.engine import Engine
from kiln.errors import FileError, RequestError
from kiln.image import Image

#: What arguments of a call are where they are not given.
_USUAL: dict[str, Any] = {
    "num_inference_steps": 50,
    "guidance_scale": 7.5,
    "num_images_per_prompt": 1,
    "eta": 0.0,
    "output_type": "pil",
    "return_dict": True,
}


class Pipeline(Adapters):
    """A model that is loaded by its first call."""

    #: The arguments that this pipeline takes besides those of all, with what they are where they are not given.
    _own: Mapping[str, Any] = {}

    def __init__(self, model: Model, scheduler: Any = None) -> None:
        super().__init__()
        self._model = model
        self._scheduler: Scheduler | None = None
        self._interrupt = False
        if scheduler is not None:
            self.scheduler = scheduler

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **arguments: Any) -> Any:
        """Opens a model: a folder, or `OWNER/NAME` on the Hugging Face Hub."""
        return cls(Model.from_pretrained(pretrained_model_name_or_path, arguments), arguments.get("scheduler"))

    @classmethod
    def from_single_file(cls, pretrained_model_link_or_path: str | os.PathLike[str], **arguments: Any) -> Any:
        """Opens a checkpoint in one file."""
        return cls.from_pretrained(pretrained_model_link_or_path, **arguments)

    @classmethod
    def from_pipe(cls, pipeline: Pipeline) -> Any:
        """Another pipeline with the model of this one, which both share, and with its scheduler and adapters."""
        made = cls.__new__(cls)
        made.__dict__.update(pipeline.__dict__)
        made._interrupt = False
        return made

    @property
    def engine(self) -> Engine:
        """Kiln's engine, loaded by the first use."""
        return self._model.engine

    @property
    def device(self) -> str:
        return self._model.device

    def to(self, *places: Any, **named: Any) -> Any:
        """Moves the model: a device (`cpu`, `cuda`, `cuda:1`), a type, or both."""
        known("to", named, ("device", "dtype", "torch_device"))
        self._model.to((*places, *named.values()))
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
        if not isinstance(scheduler, Scheduler):
            raise RequestError("`scheduler` is not one of kiln.diffusers; import it from there", "scheduler")
        of_model = self._model.scheduler.base if self._model.scheduler else None
        ignored = ("_class_name", "_diffusers_version")
        plain = [{key: value for key, value in (base or {}).items() if key not in ignored} for base in (scheduler.base, of_model)]
        if of_model and plain[0] != plain[1]:
            raise RequestError("`scheduler` has another configuration than the model; make it from pipe.scheduler.config", "scheduler")
        if not scheduler.sampler:
            raise RequestError(f"`scheduler` is of a class that Kiln does not have; it has {', '.join(SCHEDULERS)}", "scheduler")
        self._scheduler = scheduler

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

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Kiln does so always, or plans its memory by itself: nothing changes."""

    enable_vae_slicing = disable_vae_slicing = enable_attention_slicing = disable_attention_slicing = _nothing
    enable_xformers_memory_efficient_attention = disable_xformers_memory_efficient_attention = _nothing
    set_progress_bar_config = maybe_free_model_hooks = remove_all_hooks = unfuse_lora = _nothing

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        """The fields of this kind of pipeline, for each of `count` prompts."""
        return [{"height": values.get("height"), "width": values.get("width")}] * count

    def _call(self, own: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        """Makes images. `own` are arguments that may be given by position, `arguments` the others."""
        known("this pipeline", arguments, (*CALL, *self._own, *NONE))
        given = {name: value for name, value in {**own, **arguments}.items() if value is not None}
        values = {**_USUAL, **self._own, **given}
        for name in NONE:
            only(name, values.get(name), (None,), "Kiln does not take it")
        only("output_type", values["output_type"], TYPES, "these are the results")
        if values.get("prompt") is None:
            raise RequestError("`prompt` is None, expected a text or a list of texts", "prompt")
        prompts = texts("prompt", values["prompt"])
        negatives = texts("negative_prompt", values.get("negative_prompt"), len(prompts))
        common = self._common(values)
        per_prompt = values["num_images_per_prompt"]
        generator = values.get("generator")
        all_seeds = seeds(generator, len(prompts) * per_prompt)
        self._interrupt = False
        images: list[Image] = []
        for number, fields in enumerate(self._of_prompts(values, len(prompts))):
            of_prompt = {**common, **fields, "prompt": prompts[number], "negative_prompt": negatives[number]}
            for seed, rng, count in runs(all_seeds[number * per_prompt : (number + 1) * per_prompt]):
                request = {**of_prompt, "seed": seed, "rng": rng, "batch_size": count}
                images += self._made(request, self._callback(values.get("callback_on_step_end"), request))
        mark_used(generator)
        return output(images, values["output_type"], values["return_dict"])

    def _common(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that all images of a call share."""
        scheduler = self._scheduler or self._model.scheduler
        sampling = scheduler.fields() if scheduler is not None and scheduler.sampler else {}
        eta, clip_skip = values["eta"], values.get("clip_skip")
        if sampling.get("sampler") in ("ddim", "tcd"):
            sampling["eta"] = eta
        elif eta:
            raise RequestError(f"`eta` is {eta}, expected 0 except with DDIMScheduler and TCDScheduler", "eta")
        return {
            **sampling,
            **self._of_adapters(request_scale(values.get("cross_attention_kwargs")), values.get("ip_adapter_image")),
            "steps": values["num_inference_steps"],
            "guidance_rescale": values.get("guidance_rescale") or None,
            "cfg_scale": max(float(values["guidance_scale"]), 1.0),
            "clip_skip": None if clip_skip is None else clip_skip + 1,
            # Prompts of diffusers are plain text.
            "emphasis": "none",
            "keep_comments": True,
            "literal_prompt": True,
            "literal_negative_prompt": True,
        }

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
