"""What a call does: arguments become requests, one for each prompt, and their images the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kiln.diffusers.arguments import NONE, known, only, request_scale, shown, texts
from kiln.diffusers.generators import Draws, checked, kind_of, seed_of
from kiln.diffusers.outputs import TYPES, results
from kiln.diffusers.steps import Steps, tensor_inputs
from kiln.diffusers.tensors import is_latents, values as tensor_values
from kiln.errors import RequestError
from kiln.image import Image

if TYPE_CHECKING:
    from kiln.diffusers.base import Pipeline
    from kiln.diffusers.progress import Bar

#: What arguments of a call are where they are not given.
_USUAL: dict[str, Any] = {
    "num_inference_steps": 50,
    "guidance_scale": 7.5,
    "num_images_per_prompt": 1,
    "eta": 0.0,
    "output_type": "pil",
    "return_dict": True,
}
#: Samplers whose noise is a path that begins with an image's seed.
_PATHS = ("dpmpp_sde",)


class Calls:
    """The call of a pipeline."""

    def _of_prompts(self: Pipeline, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:  # type: ignore[misc]
        """The fields of this kind of pipeline, for each of `count` prompts."""
        return [{"height": values.get("height"), "width": values.get("width")}] * count

    def _encoded(self, values: Mapping[str, Any], prompts: int, images: int) -> int:
        """For how many images of a call a sample of the latents of input images is drawn."""
        del values, prompts
        return images

    def _finish(self, values: Mapping[str, Any], result: Any) -> Any:
        """The images of a call, of the kind of `output_type`, as this kind of pipeline returns them."""
        del values
        return result

    def _call(self: Pipeline, own: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:  # type: ignore[misc]
        """Makes images. `own` are arguments that may be given by position, `arguments` the others."""
        values = self._checked(own, arguments)
        prompts = texts("prompt", values["prompt"])
        negatives = texts("negative_prompt", values.get("negative_prompt"), len(prompts))
        per_prompt = values["num_images_per_prompt"]
        if not isinstance(per_prompt, int) or per_prompt < 1:
            raise RequestError(f"`num_images_per_prompt` is {shown(per_prompt)}, expected 1 or more", "num_images_per_prompt")
        count = len(prompts) * per_prompt
        callback = self._asked(values)
        common = self._common(values)
        generators = checked(values.get("generator"), count)
        noise = self._first_noise(values, count)
        draws = Draws(generators, count, self._encoded(values, len(prompts), count), noise)
        inputs = self._latents_of_input(values, count)
        requests = []
        for number, fields in enumerate(self._of_prompts(values, len(prompts))):
            of_prompt = {**common, **fields, "prompt": prompts[number], "negative_prompt": negatives[number]}
            requests += [
                (first, {**of_prompt, **seeding, "batch_size": images})
                for first, images, seeding in _runs(generators, number * per_prompt, per_prompt, common.get("sampler"))
            ]
        images: list[Image] = []
        bar = self._progress.of_call(len(requests))
        self._keep(_values=values, _guidance_scale=float(values["guidance_scale"]), _running=True)
        try:
            stops_at: int | None = None
            for first, request in requests:
                self._keep(_interrupt=False, _guidance_scale=float(values["guidance_scale"]))
                timesteps = self.engine.timesteps(**request) if callback else []
                self._keep(_timesteps=len(timesteps))
                part = None if inputs is None else inputs[first : first + request["batch_size"]]
                steps = Steps(self, draws, first, part, callback, timesteps, stops_at)
                images += self._made(request, steps, bar)
                stops_at = steps.stopped_at if stops_at is None else stops_at
        finally:
            self._keep(_running=False)
            bar.close()
        result = self._finish(values, results(images, values["output_type"]))
        return self._result.of(result, values["return_dict"])

    def _checked(self: Pipeline, own: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:  # type: ignore[misc]
        """The arguments of a call with the values of those that are not given."""
        known("this pipeline", arguments, (*self._taken, *self._own, *NONE, *self._unused))
        given = {name: value for name, value in {**own, **arguments}.items() if value is not None}
        values = {**_USUAL, **self._own, **given}
        for name in (name for name in ("prompt_2", "prompt_3", "negative_prompt_2", "negative_prompt_3") if name in values):
            if self._is_large and values[name] == values.get(name[:-2]):
                del values[name]
        for name in (*NONE, *self._unused):
            if name not in self._own:
                only(name, values.get(name), (None,), "Kiln does not take it")
        only("output_type", values["output_type"], TYPES, "these are the results")
        if values.get("prompt") is None:
            raise RequestError("`prompt` is None, expected a text or a list of texts", "prompt")
        if values.get("latents") is not None:
            _take_size(values)
        return values

    def _asked(self, values: Mapping[str, Any]) -> tuple[Callable[..., Any], list[str]] | None:
        """The callback of a call, and the names of the tensors that it gets."""
        callback = values.get("callback_on_step_end")
        if callback is None:
            return None
        if not callable(callback):
            raise RequestError(f"`callback_on_step_end` is {shown(callback)}, expected a function", "callback_on_step_end")
        return callback, tensor_inputs(callback, values.get("callback_on_step_end_tensor_inputs"))

    def _first_noise(self, values: Mapping[str, Any], count: int) -> list[memoryview] | None:
        """The argument `latents` by images: the noise that a call begins with."""
        if values.get("latents") is None:
            return None
        latents = tensor_values("latents", values["latents"])
        if len(latents) != count:
            raise RequestError(f"`latents` has {len(latents)} images, expected {count}", "latents")
        return [memoryview(one.reshape(-1)) for one in latents]

    def _latents_of_input(self, values: Mapping[str, Any], count: int) -> Any:
        """The argument `image` by images, where it is latents: `(count, c, h, w)` in float32."""
        image = values.get("image")
        if "strength" not in values or not is_latents(image):
            return None
        latents = tensor_values("image", image)
        if count % len(latents):
            raise RequestError(f"`image` has the latents of {len(latents)} images, expected 1 or {count}", "image")
        return latents.repeat(count // len(latents), axis=0)

    def _common(self: Pipeline, values: Mapping[str, Any]) -> dict[str, Any]:  # type: ignore[misc]
        """The fields that all images of a call share."""
        scheduler = self._scheduler or self._model.scheduler
        sampling = scheduler.fields() if scheduler is not None and scheduler.sampler else {}
        eta, clip_skip = values["eta"], values.get("clip_skip")
        if sampling.get("sampler") in ("ddim", "tcd"):
            sampling["eta"] = eta
        elif eta:
            raise RequestError(f"`eta` is {eta}, expected 0 except with DDIMScheduler and TCDScheduler", "eta")
        scale = values["guidance_scale"]
        if not isinstance(scale, (int, float)):
            raise RequestError(f"`guidance_scale` is {shown(scale)}, expected a number", "guidance_scale")
        return {
            **sampling,
            **self._of_adapters(request_scale(self._scaling, values.get(self._scaling)), values.get("ip_adapter_image")),
            **self._of_perturbation(values),
            "steps": values["num_inference_steps"],
            "guidance_rescale": values.get("guidance_rescale") or None,
            "cfg_scale": max(float(scale), 1.0),
            "clip_skip": None if clip_skip is None else clip_skip + 1,
            # Prompts of diffusers are plain text.
            "emphasis": "none",
            "keep_comments": True,
            "literal_prompt": True,
            "literal_negative_prompt": True,
        }

    def _shown_latents(self, latents: Any) -> Any:
        """Latents `(n, c, h, w)` of a step as a callback has them."""
        return latents

    def _engine_latents(self, latents: Any, shape: tuple[int, ...]) -> Any:
        """Latents of a callback as the engine has them, with this shape."""
        del shape
        return tensor_values("latents", latents)

    def _steered(self, scale: float) -> float | None:
        """The strength of guidance that the engine takes for the one that a callback has set."""
        return max(scale, 1.0)

    def _of_perturbation(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of perturbed attention guidance, of pipelines that have it."""
        del values
        return {}

    def _made(self: Pipeline, request: dict[str, Any], steps: Steps, bar: Bar) -> list[Image]:  # type: ignore[misc]
        def on_step(done: int, total: int) -> None:
            self._keep(_timesteps=total)
            bar.step(done, total)

        return self.engine._generate({**request, "on_step": on_step}, steering=steps if steps.is_needed else None)


def _take_size(values: dict[str, Any]) -> None:
    """Gives a call the size of the latents that it begins with."""
    shape = tensor_values("latents", values["latents"]).shape
    for name, side in (("height", 8 * shape[2]), ("width", 8 * shape[3])):
        if values.setdefault(name, side) != side:
            raise RequestError(f"`{name}` is {shown(values[name])}, expected {side}, as `latents` has it", name)


def _runs(
    generators: list[Any] | None, first: int, count: int, sampler: str | None
) -> list[tuple[int, int, dict[str, Any]]]:
    """The runs of the engine for the images of a prompt: the first image, how many, and the fields of their seeds.

    Noise is drawn by `Draws`. A sampler whose noise is a path has one run for each generator of a list, with its seed.
    """
    if generators is None:
        return [(first, count, {"seed": None, "rng": "cpu"})]
    if len(generators) > 1 and sampler in _PATHS:
        each = ((first + i, generators[first + i]) for i in range(count))
        return [(number, 1, {"seed": seed_of(one), "rng": kind_of(one)}) for number, one in each]
    one = generators[first if len(generators) > 1 else 0]
    return [(first, count, {"seed": seed_of(one), "rng": kind_of(one)})]
