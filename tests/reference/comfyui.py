"""ComfyUI: what its sampler does with an input image and a mask, in other words and without the program.

Each function names its source. As in `webui.py` the mean stands for the encoder's random sample.
"""

import numpy as np
import torch

from webui import SAMPLERS


def interpolated(mask, size):
    """`reshape_mask` of comfy/utils.py: PyTorch's bilinear interpolation without antialiasing."""
    return torch.nn.functional.interpolate(mask, size=size, mode="bilinear")


def timestep(levels, sigma):
    """`ModelSamplingDiscrete.timestep` of comfy/model_sampling.py: the nearest one."""
    return (sigma.log() - levels.log_sigmas).abs().argmin().float()


def unit(mask):
    """A mask of `LoadImageMask` (nodes.py), `(1, 1, H, W)` from 0 to 1."""
    return torch.from_numpy(np.array(mask).astype(np.float32) / 255.0)[None, None]


def condition(pixels, mask, size):
    """`InpaintModelConditioning` of nodes.py with `concat_cond` of comfy/model_base.py: the mask `(1, 1, h, w)` of a network
    with nine channels, and the pixels `(1, 3, H, W)` from -1 to 1 whose latents it gets."""
    half = pixels / 2 * (1.0 - mask.round())
    return interpolated(mask, size).round(), ((half + 0.5) * 2 - 1)


def sample(predict, latents, noise, *, sampler, steps, strength, levels, kept=None):
    """`KSampler.sample` with `set_steps`, `KSAMPLER.sample` and `KSamplerX0Inpaint` of comfy/samplers.py, and `noise_scaling`
    of comfy/model_sampling.py."""
    total = steps if strength > 0.9999 else int(steps / strength)
    sigmas = levels.uniform(total)[-(steps + 1) :]  # the scheduler "normal"
    drawn = noise()
    is_most = sigmas[0] >= levels.sigmas[-1] * (1 - 1e-5)
    factor = (1 + sigmas[0] ** 2).sqrt() if is_most else sigmas[0]

    def denoise(x, sigma):
        if kept is None:
            return predict(x, sigma)
        x = x * kept + (latents + drawn * sigma) * (1 - kept)
        return predict(x, sigma) * kept + latents * (1 - kept)

    return SAMPLERS[sampler](denoise, latents + drawn * factor, sigmas, noise)
