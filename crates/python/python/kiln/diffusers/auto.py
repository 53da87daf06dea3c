"""Pipelines that are chosen by the model's configuration and by what a script asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kiln.diffusers import controlled, pipelines, unions
from kiln.diffusers.base import Pipeline
from kiln.diffusers.controlnets import ControlNetUnionModel
from kiln.errors import RequestError

#: The classes by the task, and by what is asked for: for Stable Diffusion 1 and 2, and for XL.
_CLASSES: dict[str, dict[str, tuple[type[Pipeline] | None, type[Pipeline] | None]]] = {
    "text": {
        "": (pipelines.StableDiffusionPipeline, pipelines.StableDiffusionXLPipeline),
        "pag": (pipelines.StableDiffusionPAGPipeline, pipelines.StableDiffusionXLPAGPipeline),
        "controlnet": (controlled.StableDiffusionControlNetPipeline, controlled.StableDiffusionXLControlNetPipeline),
        "union": (None, unions.StableDiffusionXLControlNetUnionPipeline),
    },
    "image": {
        "": (pipelines.StableDiffusionImg2ImgPipeline, pipelines.StableDiffusionXLImg2ImgPipeline),
        "controlnet": (controlled.StableDiffusionControlNetImg2ImgPipeline, controlled.StableDiffusionXLControlNetImg2ImgPipeline),
        "union": (None, unions.StableDiffusionXLControlNetUnionImg2ImgPipeline),
    },
    "inpaint": {
        "": (pipelines.StableDiffusionInpaintPipeline, pipelines.StableDiffusionXLInpaintPipeline),
        "controlnet": (controlled.StableDiffusionControlNetInpaintPipeline, controlled.StableDiffusionXLControlNetInpaintPipeline),
        "union": (None, unions.StableDiffusionXLControlNetUnionInpaintPipeline),
    },
}


class _Auto:
    """Chooses a pipeline by the model's configuration."""

    _task = "text"

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **arguments: Any) -> Any:
        """Opens a model: a folder, or `OWNER/NAME` on the Hugging Face Hub, which is loaded to see what it is.

        `controlnet` asks for a pipeline with ControlNets, `enable_pag` for one with perturbed attention guidance.
        """
        asked, own = _asked(arguments)
        plain = pipelines.StableDiffusionPipeline.from_pretrained(pretrained_model_name_or_path, **arguments)
        index = Path(pretrained_model_name_or_path, "model_index.json")
        is_large = "XL" in json.loads(index.read_text())["_class_name"] if index.is_file() else plain.engine.defaults["family"] == "sdxl"
        return _class(cls._task, asked, is_large).from_pipe(plain, **own)

    @classmethod
    def from_pipe(cls, pipeline: Pipeline, **arguments: Any) -> Any:
        """Another pipeline with the model of this one, which both share."""
        kept = pipeline.__dict__.get("controlnet")
        if kept and "controlnet" not in arguments:
            arguments["controlnet"] = kept
        asked, own = _asked(arguments)
        return _class(cls._task, asked, pipeline._is_large).from_pipe(pipeline, **arguments, **own)


def _asked(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What arguments ask for, and those of them that this kind of pipeline takes, which leave the others."""
    controlnet, pag = arguments.pop("controlnet", None), arguments.pop("enable_pag", False)
    layers = arguments.pop("pag_applied_layers", None)
    if controlnet is not None and pag:
        raise RequestError("`enable_pag` and `controlnet` are given, expected one of them", "enable_pag")
    if pag:
        return "pag", {"pag_applied_layers": layers}
    if layers is not None:
        raise RequestError("`pag_applied_layers` is given, expected `enable_pag` too", "pag_applied_layers")
    if controlnet is not None:
        first = controlnet[0] if isinstance(controlnet, (list, tuple)) and controlnet else controlnet
        return "union" if isinstance(first, ControlNetUnionModel) else "controlnet", {"controlnet": controlnet}
    return "", {}


def _class(task: str, asked: str, is_large: bool) -> type[Pipeline]:
    found = _CLASSES[task].get(asked, (None, None))[is_large]
    if found is None:
        name = "enable_pag" if asked == "pag" else "controlnet"
        raise RequestError(f"`{name}`: Kiln has no such pipeline for this task and model", name)
    return found


class AutoPipelineForText2Image(_Auto):
    """Text to image, for every model."""


class DiffusionPipeline(AutoPipelineForText2Image):
    """Text to image, for every model."""


class AutoPipelineForImage2Image(_Auto):
    """Image to image, for every model."""

    _task = "image"


class AutoPipelineForInpainting(_Auto):
    """Inpainting, for every model."""

    _task = "inpaint"
