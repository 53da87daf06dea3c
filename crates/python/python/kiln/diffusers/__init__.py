"""A subset of diffusers on Kiln: scripts change their imports.

    from kiln.diffusers import StableDiffusionPipeline
    from kiln.diffusers.utils import load_image

docs/python.md lists what is taken. Arguments and attributes that are not in the list are errors, since an image would differ without a
word.
"""

from typing import Any

from kiln.diffusers.auto import (
    AutoPipelineForImage2Image,
    AutoPipelineForInpainting,
    AutoPipelineForText2Image,
    DiffusionPipeline,
)
from kiln.diffusers.callbacks import (
    MultiPipelineCallbacks,
    PipelineCallback,
)
from kiln.diffusers.components import (
    AutoencoderKL,
    AutoencoderTiny,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    UNet2DConditionModel,
)
from kiln.diffusers.controlled import (
    StableDiffusionControlNetImg2ImgPipeline,
    StableDiffusionControlNetInpaintPipeline,
    StableDiffusionControlNetPipeline,
    StableDiffusionXLControlNetImg2ImgPipeline,
    StableDiffusionXLControlNetInpaintPipeline,
    StableDiffusionXLControlNetPipeline,
)
from kiln.diffusers.controlnets import (
    ControlNetModel,
    ControlNetUnionModel,
    MultiAdapter,
    T2IAdapter,
)
from kiln.diffusers.flow import (
    FluxImg2ImgPipeline,
    FluxInpaintPipeline,
    FluxPipeline,
    StableDiffusion3Img2ImgPipeline,
    StableDiffusion3InpaintPipeline,
    StableDiffusion3Pipeline,
)
from kiln.diffusers.generators import (
    Generator,
)
from kiln.diffusers.help_texts import document as _document
from kiln.diffusers.image_processor import (
    VaeImageProcessor,
)
from kiln.diffusers.missing import (
    MissingError,
    missing as _missing,
)
from kiln.diffusers.outputs import (
    FluxPipelineOutput,
    StableDiffusion3PipelineOutput,
    StableDiffusionPipelineOutput,
    StableDiffusionXLPipelineOutput,
)
from kiln.diffusers.pipelines import (
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionPAGPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLInpaintPipeline,
    StableDiffusionXLPAGPipeline,
    StableDiffusionXLPipeline,
)
from kiln.diffusers.schedulers import (
    DDIMScheduler,
    DDPMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSDEScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    HeunDiscreteScheduler,
    KDPM2AncestralDiscreteScheduler,
    KDPM2DiscreteScheduler,
    LCMScheduler,
    LMSDiscreteScheduler,
    PNDMScheduler,
    TCDScheduler,
    UniPCMultistepScheduler,
)
from kiln.diffusers.unions import (
    StableDiffusionAdapterPipeline,
    StableDiffusionXLAdapterPipeline,
    StableDiffusionXLControlNetUnionImg2ImgPipeline,
    StableDiffusionXLControlNetUnionInpaintPipeline,
    StableDiffusionXLControlNetUnionPipeline,
)

__all__ = [
    "AutoPipelineForImage2Image",
    "AutoPipelineForInpainting",
    "AutoPipelineForText2Image",
    "AutoencoderKL",
    "AutoencoderTiny",
    "ControlNetModel",
    "ControlNetUnionModel",
    "DDIMScheduler",
    "DDPMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSDEScheduler",
    "DiffusionPipeline",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "FlowMatchHeunDiscreteScheduler",
    "FluxImg2ImgPipeline",
    "FluxInpaintPipeline",
    "FluxPipeline",
    "FluxPipelineOutput",
    "FluxTransformer2DModel",
    "Generator",
    "HeunDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LCMScheduler",
    "LMSDiscreteScheduler",
    "MissingError",
    "MultiAdapter",
    "MultiPipelineCallbacks",
    "PNDMScheduler",
    "PipelineCallback",
    "SD3Transformer2DModel",
    "StableDiffusion3Img2ImgPipeline",
    "StableDiffusion3InpaintPipeline",
    "StableDiffusion3Pipeline",
    "StableDiffusion3PipelineOutput",
    "StableDiffusionAdapterPipeline",
    "StableDiffusionControlNetImg2ImgPipeline",
    "StableDiffusionControlNetInpaintPipeline",
    "StableDiffusionControlNetPipeline",
    "StableDiffusionImg2ImgPipeline",
    "StableDiffusionInpaintPipeline",
    "StableDiffusionPAGPipeline",
    "StableDiffusionPipeline",
    "StableDiffusionPipelineOutput",
    "StableDiffusionXLAdapterPipeline",
    "StableDiffusionXLControlNetImg2ImgPipeline",
    "StableDiffusionXLControlNetInpaintPipeline",
    "StableDiffusionXLControlNetPipeline",
    "StableDiffusionXLControlNetUnionImg2ImgPipeline",
    "StableDiffusionXLControlNetUnionInpaintPipeline",
    "StableDiffusionXLControlNetUnionPipeline",
    "StableDiffusionXLImg2ImgPipeline",
    "StableDiffusionXLInpaintPipeline",
    "StableDiffusionXLPAGPipeline",
    "StableDiffusionXLPipeline",
    "StableDiffusionXLPipelineOutput",
    "T2IAdapter",
    "TCDScheduler",
    "UNet2DConditionModel",
    "UniPCMultistepScheduler",
    "VaeImageProcessor",
]

_document(value for value in list(globals().values()) if isinstance(value, type))


def __getattr__(name: str) -> Any:
    raise _missing(name)
