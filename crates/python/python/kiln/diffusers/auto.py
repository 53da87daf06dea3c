"""Pipelines that are chosen by the model's configuration."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kiln.diffusers.base import Pipeline
from kiln.diffusers.pipelines import (
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLInpaintPipeline,
    StableDiffusionXLPipeline,
)


class _Auto:
    """Chooses a pipeline by the model's configuration."""

    _kinds: tuple[type[Pipeline], type[Pipeline]]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **arguments: Any) -> Any:
        """Opens a model: a folder, or `OWNER/NAME` on the Hugging Face Hub, which is loaded to see what it is."""
        plain, large = cls._kinds
        pipeline = plain.from_pretrained(pretrained_model_name_or_path, **arguments)
        index = Path(pretrained_model_name_or_path, "model_index.json")
        is_large = "XL" in json.loads(index.read_text())["_class_name"] if index.is_file() else pipeline.engine.defaults["family"] == "sdxl"
        return large.from_pipe(pipeline) if is_large else pipeline

    @classmethod
    def from_pipe(cls, pipeline: Pipeline) -> Any:
        """Another pipeline with the model of this one, which both share."""
        is_large = "XL" in type(pipeline).__name__
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

    _kinds = (StableDiffusionInpaintPipeline, StableDiffusionXLInpaintPipeline)
