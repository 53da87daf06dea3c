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


def placed(region, size, mask=None):
    """The rectangle `(rows, columns, top, left)` of a conditioning in latents of `size`, or None, and its strengths, by
    `resolve_areas_and_cond_masks_multidim` and `get_area_and_mult` of comfy/samplers.py. `mask` is `(1, 1, H, W)`."""
    area = None
    if "pixels" in region:
        left, top, width, height = region["pixels"]
        area = [height // 8, width // 8, top // 8, left // 8]
    if "share" in region:
        left, top, width, height = region["share"]
        sides = [max(1, round(part * side)) for part, side in zip((height, width), size)]
        area = sides + [round(part * side) for part, side in zip((top, left), size)]
    if mask is not None:
        mask = interpolated(mask, size)[0, 0]
        if region.get("bounds"):
            rows, columns = torch.where(mask)
            sides = [max(8, int(places.max() - places.min()) + 1) for places in (rows, columns)]
            area = sides + [int(rows.min()), int(columns.min())]
    rows, columns, top, left = area or [*size, 0, 0]
    rows, columns = min(rows, size[0] - top), min(columns, size[1] - left)
    strengths = torch.ones(rows, columns) * region.get("strength", 1.0)
    if mask is not None:
        strengths = strengths * mask[top : top + rows, left : left + columns]
    elif area is not None:
        for axis, (start, length, whole) in enumerate(((top, rows, size[0]), (left, columns, size[1]))):
            fade = min(8, length // 4)
            for i in range(fade):
                factor = 1.0 / fade * (i + 1)
                if start != 0:
                    strengths.narrow(axis, i, 1).mul_(factor)
                if start + length < whole:
                    strengths.narrow(axis, length - 1 - i, 1).mul_(factor)
    return (None if area is None else (rows, columns, top, left)), strengths


def averaged(predict, x, rows):
    """`calc_cond_batch` of comfy/samplers.py: the average of the predictions for `rows` of text, rectangle and strengths."""
    total, count = torch.zeros_like(x), torch.zeros_like(x) + 1e-37
    for text, area, strengths in rows:
        height, width, top, left = area or (*x.shape[2:], 0, 0)
        part = (..., slice(top, top + height), slice(left, left + width))
        total[part] += predict(x[part], text) * strengths
        count[part] += strengths.expand_as(x[part])
    return total / count


def with_rectangles_of(rows, text):
    """The rows of the negative prompt `text`: the whole image, and each rectangle of `rows` once
    (`create_cond_with_same_area_if_none` of comfy/samplers.py)."""
    own, known = [(text, None, torch.ones(()))], set()
    for _, area, strengths in rows:
        if area is not None and area not in known:
            known.add(area)
            own.append((text, area, strengths))
    return own


def blended(to, other, weight):
    """`ConditioningAverage.addWeighted` of nodes.py for pairs of context and pooled text; `weight` is that of `to`."""
    (context, pooled), (other, other_pooled) = to, other
    other = other[:, : context.shape[1]]
    other = torch.cat([other, torch.zeros(1, context.shape[1] - other.shape[1], context.shape[2])], dim=1)
    pooled = None if pooled is None else pooled * weight + other_pooled * (1.0 - weight)
    return context * weight + other * (1.0 - weight), pooled
