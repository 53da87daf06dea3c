"""Pipelines for flow models: Stable Diffusion 3 and FLUX.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from kiln.diffusers.arguments import FLOW_CALL, FLOW_NONE, shown
from kiln.diffusers.base import Pipeline
from kiln.diffusers.components import Component
from kiln.diffusers.keywords import (
    FluxArguments,
    FluxImageArguments,
    FluxInpaintArguments,
    Sd3Arguments,
    Sd3ImageArguments,
    Sd3InpaintArguments,
    Sd3TextToImageArguments,
    Texts,
)
from kiln.diffusers.masks import Masked
from kiln.diffusers.outputs import FluxPipelineOutput, StableDiffusion3PipelineOutput
from kiln.diffusers.pipelines import begins, given
from kiln.diffusers.tensors import is_latents, packed, unpacked, values as tensor_values
from kiln.errors import RequestError
from kiln.image import ImageLike

#: Sides of images are multiples of the pixels that a token covers.
_SIDE = 16
#: What skip-layer guidance is where a call does not say it.
_SKIP: dict[str, Any] = {
    "skip_guidance_layers": None,
    "skip_layer_guidance_scale": 2.8,
    "skip_layer_guidance_stop": 0.2,
    "skip_layer_guidance_start": 0.01,
}


class _Flow(Pipeline):
    """What pipelines for flow models have in common: transformers, T5, and texts that are cut off."""

    _taken = FLOW_CALL
    _unused = FLOW_NONE
    _scaling = "joint_attention_kwargs"
    _is_large = True

    @property
    def transformer(self) -> Component:
        """The transformer."""
        return self._model.component("transformer")

    @transformer.setter
    def transformer(self, transformer: Any) -> None:
        self._put("transformer", transformer)

    def _common(self, values: Mapping[str, Any]) -> dict[str, Any]:
        length = values["max_sequence_length"]
        if not isinstance(length, int) or not 1 <= length <= 512:
            raise RequestError(f"`max_sequence_length` is {shown(length)}, expected 1 to 512", "max_sequence_length")
        fields = super()._common({**values, "eta": 0.0})
        return {**fields, "max_length": length}

    def _side(self, name: str, value: Any) -> int:
        """A side in pixels: that of the call, or the model's."""
        return self.engine.defaults[name] if value is None else value

    def _size(self, values: Mapping[str, Any]) -> tuple[int, int]:
        """Height and width of the results."""
        return self._side("height", values.get("height")), self._side("width", values.get("width"))

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        height, width = self._size(values)
        return [{"height": height, "width": width}] * count


class _FromImage(_Flow):
    """Begins with an image, which is resized."""

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        image: Any = values.get("image")
        size = (8 * image.shape[2], 8 * image.shape[3]) if is_latents(image) else self._size(values)
        fields = {"height": size[0], "width": size[1], "strength": values["strength"]}
        return [{**fields, "init": one} for one in begins(values, count)]

    def _encoded(self, values: Mapping[str, Any], prompts: int, images: int) -> int:
        del images
        return given(values, prompts)


class _Inpaint(_Flow, Masked):
    """The white part of the mask is made again."""

    def _of_prompts(self, values: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        size = self._size(values)
        fields = {"height": size[0], "width": size[1], "strength": values["strength"]}
        return [{**fields, **masked} for masked in self._masked(values, count, size)]


class _Sd3(_Flow):
    """What pipelines for Stable Diffusion 3 have in common."""

    _flow = "sd3"
    _result = StableDiffusion3PipelineOutput

    def _common(self, values: Mapping[str, Any]) -> dict[str, Any]:
        fields, clip_skip = super()._common(values), values.get("clip_skip")
        if clip_skip and fields["cfg_scale"] > 1.0:
            reason = "diffusers leaves layers out for the prompt alone, and Kiln for the negative prompt too"
            raise RequestError(f"`clip_skip` is {shown(clip_skip)}, expected None with guidance: {reason}", "clip_skip")
        fields["clip_skip"] = None if clip_skip is None else clip_skip + 2
        fields["chunk_cut"] = "truncate"
        layers = values.get("skip_guidance_layers")
        if layers is None:
            return fields
        if not isinstance(layers, (list, tuple)) or not all(isinstance(one, int) for one in layers):
            raise RequestError(f"`skip_guidance_layers` is {shown(layers)}, expected numbers of blocks", "skip_guidance_layers")
        names = {"slg_scale": "scale", "slg_start": "start", "slg_end": "stop"}
        skipped = {own: float(values[f"skip_layer_guidance_{name}"]) for own, name in names.items()}
        return {**fields, **skipped, "slg_layers": ",".join(map(str, layers))}


class StableDiffusion3Pipeline(_Sd3):
    """Text to image, for Stable Diffusion 3 and 3.5."""

    _own = {"latents": None, "num_inference_steps": 28, "guidance_scale": 7.0, "max_sequence_length": 256, **_SKIP}

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        prompt_3: Texts = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int | None = None,
        **arguments: Unpack[Sd3TextToImageArguments],
    ) -> StableDiffusion3PipelineOutput:
        """Makes images of a prompt."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "prompt_3": prompt_3, "height": height, "width": width}
        return self._call({**own, "num_inference_steps": num_inference_steps}, arguments)


class StableDiffusion3Img2ImgPipeline(_FromImage, _Sd3):
    """Image to image, for Stable Diffusion 3 and 3.5."""

    _own = {"image": None, "strength": 0.6, "guidance_scale": 7.0, "max_sequence_length": 256}

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        prompt_3: Texts = None,
        height: int | None = None,
        width: int | None = None,
        image: ImageLike = None,
        **arguments: Unpack[Sd3ImageArguments],
    ) -> StableDiffusion3PipelineOutput:
        """Makes images of a prompt and an image, or the latents of one."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "prompt_3": prompt_3, "height": height, "width": width}
        return self._call({**own, "image": image}, arguments)


class StableDiffusion3InpaintPipeline(_Inpaint, _Sd3):
    """Inpainting, for Stable Diffusion 3 and 3.5."""

    _own = {**StableDiffusion3Img2ImgPipeline._own, "mask_image": None, "padding_mask_crop": None}

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        prompt_3: Texts = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        masked_image_latents: None = None,
        **arguments: Unpack[Sd3InpaintArguments],
    ) -> StableDiffusion3PipelineOutput:
        """Makes the white part of a mask again."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "prompt_3": prompt_3, "image": image, "mask_image": mask_image}
        return self._call({**own, "masked_image_latents": masked_image_latents}, arguments)


class _Flux(_Flow):
    """What pipelines for FLUX.1 have in common: guidance that the transformer takes as an input, and packed latents."""

    _flow = "flux"
    _result = FluxPipelineOutput

    #: Guidance is an input of the transformer, with which steps are guided where `true_cfg_scale` says it.
    do_classifier_free_guidance = False

    def _common(self, values: Mapping[str, Any]) -> dict[str, Any]:
        true_cfg = values["true_cfg_scale"]
        if not isinstance(true_cfg, (int, float)):
            raise RequestError(f"`true_cfg_scale` is {shown(true_cfg)}, expected a number", "true_cfg_scale")
        fields = super()._common(values)
        fields["cfg_scale"] = float(true_cfg) if true_cfg > 1.0 and values.get("negative_prompt") is not None else 1.0
        if self.engine.defaults["guidance"] is not None:  # a model without this input ignores it
            fields["guidance"] = float(values["guidance_scale"])
        return fields

    def _side(self, name: str, value: Any) -> int:
        side = super()._side(name, value)
        return side // _SIDE * _SIDE if isinstance(side, int) else side

    def _checked(self, own: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        latents = arguments.get("latents")
        if latents is None:
            return super()._checked(own, arguments)
        height, width = self._size({**own, **arguments})
        values = tensor_values("latents", latents, 3)
        plain = {**arguments, "latents": unpacked("latents", values, height // 8, width // 8)}
        return super()._checked({**own, "height": height, "width": width}, plain)

    def _finish(self, values: Mapping[str, Any], result: Any) -> Any:
        result = super()._finish(values, result)
        return packed(result) if values["output_type"] == "latent" else result

    def _shown_latents(self, latents: Any) -> Any:
        return packed(latents)

    def _engine_latents(self, latents: Any, shape: tuple[int, ...]) -> Any:
        return unpacked("latents", tensor_values("latents", latents, 3), shape[2], shape[3])

    def _steered(self, scale: float) -> float | None:
        reason = "it is an input of the transformer, and the same in all steps"
        raise RequestError(f"`_guidance_scale` is set to {shown(scale)} by a callback: {reason}", "callback_on_step_end")


class FluxPipeline(_Flux):
    """Text to image, for FLUX.1."""

    _own = {
        "latents": None,
        "num_inference_steps": 28,
        "guidance_scale": 3.5,
        "true_cfg_scale": 1.0,
        "max_sequence_length": 512,
    }

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        negative_prompt: Texts = None,
        negative_prompt_2: Texts = None,
        true_cfg_scale: float | None = None,
        height: int | None = None,
        width: int | None = None,
        **arguments: Unpack[FluxArguments],
    ) -> FluxPipelineOutput:
        """Makes images of a prompt."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "negative_prompt": negative_prompt}
        others = {"true_cfg_scale": true_cfg_scale, "height": height, "width": width}
        return self._call({**own, "negative_prompt_2": negative_prompt_2, **others}, arguments)


class FluxImg2ImgPipeline(_FromImage, _Flux):
    """Image to image, for FLUX.1."""

    _own = {
        "image": None,
        "strength": 0.6,
        "num_inference_steps": 28,
        "guidance_scale": 7.0,
        "true_cfg_scale": 1.0,
        "max_sequence_length": 512,
    }

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        negative_prompt: Texts = None,
        negative_prompt_2: Texts = None,
        true_cfg_scale: float | None = None,
        image: ImageLike = None,
        **arguments: Unpack[FluxImageArguments],
    ) -> FluxPipelineOutput:
        """Makes images of a prompt and an image, or the latents of one."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "negative_prompt": negative_prompt}
        others = {"true_cfg_scale": true_cfg_scale, "image": image}
        return self._call({**own, "negative_prompt_2": negative_prompt_2, **others}, arguments)


class FluxInpaintPipeline(_Inpaint, _Flux):
    """Inpainting, for FLUX.1."""

    _own = {**FluxImg2ImgPipeline._own, "mask_image": None, "padding_mask_crop": None}

    def __call__(
        self,
        prompt: Texts = None,
        prompt_2: Texts = None,
        negative_prompt: Texts = None,
        negative_prompt_2: Texts = None,
        true_cfg_scale: float | None = None,
        image: ImageLike = None,
        mask_image: ImageLike = None,
        **arguments: Unpack[FluxInpaintArguments],
    ) -> FluxPipelineOutput:
        """Makes the white part of a mask again."""
        own = {"prompt": prompt, "prompt_2": prompt_2, "negative_prompt": negative_prompt}
        others = {"true_cfg_scale": true_cfg_scale, "image": image, "mask_image": mask_image}
        return self._call({**own, "negative_prompt_2": negative_prompt_2, **others}, arguments)
