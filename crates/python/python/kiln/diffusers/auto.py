"""Pipelines that are chosen by the model's configuration and by what a script asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kiln.diffusers import controlled, flow, pipelines, unions
from kiln.diffusers.base import Pipeline
from kiln.diffusers.controlnets import ControlNetUnionModel
from kiln.errors import RequestError

#: The classes by the task, and by what is asked for: and by the family.
_CLASSES: dict[str, dict[str, dict[str, type[Pipeline]]]] = {
    "text": {
        "": {
            "sd": pipelines.StableDiffusionPipeline,
            "sdxl": pipelines.StableDiffusionXLPipeline,
            "sd3": flow.StableDiffusion3Pipeline,
            "flux": flow.FluxPipeline,
        },
        "pag": {"sd": pipelines.StableDiffusionPAGPipeline, "sdxl": pipelines.StableDiffusionXLPAGPipeline},
        "controlnet": {
            "sd": controlled.StableDiffusionControlNetPipeline,
            "sdxl": controlled.StableDiffusionXLControlNetPipeline,
        },
        "union": {"sdxl": unions.StableDiffusionXLControlNetUnionPipeline},
    },
    "image": {
        "": {
            "sd": pipelines.StableDiffusionImg2ImgPipeline,
            "sdxl": pipelines.StableDiffusionXLImg2ImgPipeline,
            "sd3": flow.StableDiffusion3Img2ImgPipeline,
            "flux": flow.FluxImg2ImgPipeline,
        },
        "controlnet": {
            "sd": controlled.StableDiffusionControlNetImg2ImgPipeline,
            "sdxl": controlled.StableDiffusionXLControlNetImg2ImgPipeline,
        },
        "union": {"sdxl": unions.StableDiffusionXLControlNetUnionImg2ImgPipeline},
    },
    "inpaint": {
        "": {
            "sd": pipelines.StableDiffusionInpaintPipeline,
            "sdxl": pipelines.StableDiffusionXLInpaintPipeline,
            "sd3": flow.StableDiffusion3InpaintPipeline,
            "flux": flow.FluxInpaintPipeline,
        },
        "controlnet": {
            "sd": controlled.StableDiffusionControlNetInpaintPipeline,
            "sdxl": controlled.StableDiffusionXLControlNetInpaintPipeline,
        },
        "union": {"sdxl": unions.StableDiffusionXLControlNetUnionInpaintPipeline},
    },
}
#: Marks in the names of pipelines' classes, and the families.
_MARKS = (("XL", "sdxl"), ("StableDiffusion3", "sd3"), ("Flux", "flux"))


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
        return _class(cls._task, asked, _family(pretrained_model_name_or_path, plain)).from_pipe(plain, **own)

    @classmethod
    def from_pipe(cls, pipeline: Pipeline, **arguments: Any) -> Any:
        """Another pipeline with the model of this one, which both share."""
        kept = pipeline.__dict__.get("controlnet")
        if kept and "controlnet" not in arguments:
            arguments["controlnet"] = kept
        asked, own = _asked(arguments)
        return _class(cls._task, asked, pipeline._flow or ("sdxl" if pipeline._is_large else "sd")).from_pipe(pipeline, **arguments, **own)


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


def _family(path: str | os.PathLike[str], pipeline: Pipeline) -> str:
    """The family of a model, by its index or by what was loaded."""
    index = Path(path, "model_index.json")
    if index.is_file():
        name = json.loads(index.read_text())["_class_name"]
        return next((family for mark, family in _MARKS if mark in name), "sd")
    family = pipeline.engine.defaults["family"]
    return family if family in ("sdxl", "sd3", "flux") else "sd"


def _class(task: str, asked: str, family: str) -> type[Pipeline]:
    found = _CLASSES[task].get(asked, {}).get(family)
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
