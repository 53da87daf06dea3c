"""Names of diffusers that Kiln does not have: an import of one says so."""

from __future__ import annotations

from kiln.errors import Error, RequestError

#: Why, by a part of the name, in this order.
_REASONS = (
    ("InstructPix2Pix", "Kiln has no models that are instructed by a text"),
    ("DPMSolverSinglestep", "Kiln has no sampler of this kind; DPMSolverMultistepScheduler solves the same equation"),
    ("Flux", "of pipelines for FLUX.1, Kiln has those for text, images and inpainting"),
    ("StableDiffusion3", "of pipelines for Stable Diffusion 3, Kiln has those for text, images and inpainting"),
    ("StableCascade", "Kiln does not run this model"),
    ("FlowMatch", "of these schedulers, Kiln has FlowMatchEulerDiscreteScheduler and FlowMatchHeunDiscreteScheduler"),
    ("Upscale", "`kiln.Engine.upscale` enlarges images"),
    ("Video", "Kiln makes single images"),
    ("AnimateDiff", "Kiln makes single images"),
    ("PAG", "of pipelines with perturbed attention guidance, Kiln has those for text to image"),
    ("Pipeline", "docs/python.md lists the pipelines"),
    ("Scheduler", "docs/python.md lists the schedulers"),
    ("Autoencoder", "Kiln has AutoencoderKL and AutoencoderTiny"),
)


class MissingError(Error, ImportError):
    """A name of diffusers that Kiln does not have."""


class AttributeMissingError(RequestError, AttributeError):
    """An attribute of diffusers' objects that Kiln's do not have."""


def missing(name: str) -> Exception:
    """The error for an attribute that the module does not have."""
    if not name[:1].isupper():
        return AttributeError(f"module 'kiln.diffusers' has no attribute {name!r}")
    reason = next((reason for part, reason in _REASONS if part in name), "docs/python.md lists what it has")
    return MissingError(f"kiln.diffusers has no {name}: {reason}", name)
