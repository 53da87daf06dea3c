"""AUTOMATIC1111's web UI, version 1.10: what it does with an input image and a mask, in other words and without the program.

Each function names its source. Nothing of Kiln is used, so that the fixtures that `rules.py` makes with it are independent.
One thing differs on purpose: the web UI samples the input's latents with a generator that no seed sets, so the mean stands for
the sample.
"""

import math

import cv2
import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps


# --------------------------------------------------------------------------------------------------
# Images and masks


def flatten(image):
    """`flatten` of modules/images.py: transparent images on `img2img_background_color`, which is white."""
    if image.mode == "RGBA":
        background = Image.new("RGBA", image.size, "#ffffff")
        background.paste(image, mask=image)
        image = background
    return image.convert("RGB")


def binary_mask(mask, rounded):
    """`create_binary_mask` of modules/processing.py: the alpha channel where there is one that is not opaque."""
    if mask.mode == "RGBA" and mask.getextrema()[-1] != (255, 255):
        alpha = mask.getchannel("A")
        return alpha.point(lambda v: 255 if v > 128 else 0) if rounded else alpha
    return mask.convert("L")


def blur(mask, sigma):
    """The blur of `StableDiffusionProcessingImg2Img.init`: a pass along x, then one along y."""
    if sigma <= 0:
        return mask
    size = 2 * int(2.5 * sigma + 0.5) + 1
    pixels = cv2.GaussianBlur(np.array(mask), (size, 1), sigma)
    return Image.fromarray(cv2.GaussianBlur(pixels, (1, size), sigma))


def resize(mode, image, width, height):
    """`resize_image` of modules/images.py without an upscaler: 0 stretches, 1 crops, 2 fills."""
    if mode == 0:
        return image.resize((width, height), Image.LANCZOS)
    ratio, own = width / height, image.width / image.height
    if mode == 1:
        w = width if ratio > own else image.width * height // image.height
        h = height if ratio <= own else image.height * width // image.width
    else:
        w = width if ratio < own else image.width * height // image.height
        h = height if ratio >= own else image.height * width // image.width
    resized = image.resize((w, h), Image.LANCZOS)
    result = Image.new("RGB", (width, height))
    result.paste(resized, (width // 2 - w // 2, height // 2 - h // 2))
    if mode == 2 and ratio < own and (bar := height // 2 - h // 2) > 0:
        result.paste(resized.resize((width, bar), box=(0, 0, width, 0)), (0, 0))
        result.paste(resized.resize((width, bar), box=(0, h, width, h)), (0, bar + h))
    if mode == 2 and ratio > own and (bar := width // 2 - w // 2) > 0:
        result.paste(resized.resize((bar, height), box=(0, 0, 0, height)), (0, 0))
        result.paste(resized.resize((bar, height), box=(w, 0, w, height)), (bar + w, 0))
    return result


def crop_region(mask, padding, width, height):
    """`get_crop_region_v2` and `expand_crop_region` of modules/masking.py: left, top, right, bottom."""
    left, top, right, bottom = mask.getbbox()
    left, top = max(left - padding, 0), max(top - padding, 0)
    right, bottom = min(right + padding, mask.width), min(bottom + padding, mask.height)

    def widen(start, end, more, limit):
        start, end = start - more // 2, end + more - more // 2
        if end >= limit:
            start, end = start - (end - limit), limit
        if start < 0:
            start, end = 0, end - start
        return start, min(end, limit)

    ratio = width / height
    if (right - left) / (bottom - top) > ratio:
        top, bottom = widen(top, bottom, int((right - left) / ratio - (bottom - top)), mask.height)
    else:
        left, right = widen(left, right, int((bottom - top) * ratio - (right - left)), mask.width)
    return left, top, right, bottom


def fill(image, mask):
    """`fill` of modules/masking.py."""
    kept = Image.new("RGBa", image.size)
    kept.paste(image.convert("RGBA").convert("RGBa"), mask=ImageOps.invert(mask.convert("L")))
    result = Image.new("RGBA", image.size)
    for radius, times in ((256, 1), (64, 1), (16, 2), (4, 4), (2, 2), (0, 1)):
        blurred = kept.filter(ImageFilter.GaussianBlur(radius)).convert("RGBA")
        for _ in range(times):
            result.alpha_composite(blurred)
    return result.convert("RGB")


class Prepared:
    """`StableDiffusionProcessingImg2Img.init` of modules/processing.py up to the encoder.

    `image` is what the encoder gets (RGB), `mask` the mask of that image (L), `overlay_mask` the mask of the input around the
    result, `region` the part that is seen (or None), `original` what lies around the result.
    """

    def __init__(self, image, mask, width, height, *, resize_mode=0, mask_blur=4, invert=False, content="original",
                 only_masked=False, padding=0, rounded=True):
        self.rounded, self.region, self.mask, self.content = rounded, None, None, content
        if mask is not None:
            mask = binary_mask(mask, rounded)
            mask = ImageOps.invert(mask) if invert else mask
            mask = blur(mask, mask_blur)
            self.overlay_mask = mask
            if only_masked:
                self.region = crop_region(mask, padding, width, height)
                mask = resize(2, mask.crop(self.region), width, height)
            else:
                mask = resize(resize_mode, mask, width, height)
                doubled = np.clip(np.array(mask.convert("L")).astype(np.float32) * 2, 0, 255)
                self.overlay_mask = Image.fromarray(doubled.astype(np.uint8))
            self.mask = mask.convert("L")
        image = flatten(image)
        if self.region is None:
            image = resize(resize_mode, image, width, height)
        self.original = image
        if self.region is not None:
            image = resize(2, image.crop(self.region), width, height)
        if mask is not None and content != "original":
            image = fill(image, self.mask)
        self.image = image

    def overlay(self, mask):
        """The input with a hole where `mask` is white."""
        masked = Image.new("RGBa", self.original.size)
        masked.paste(self.original.convert("RGBA").convert("RGBa"), mask=ImageOps.invert(mask.convert("L")))
        return masked.convert("RGBA")

    def uncrop(self, image):
        """`uncrop` of modules/processing.py."""
        if self.region is None:
            return image
        left, top, right, bottom = self.region
        base = Image.new("RGBA", self.original.size)
        base.paste(resize(1, image, right - left, bottom - top), (left, top))
        return base

    def paste(self, result, mask=None):
        """`apply_overlay` of modules/processing.py: the input around a result of the size of `image`."""
        result = self.uncrop(result).convert("RGBA")
        result.alpha_composite(self.overlay(mask or self.overlay_mask))
        return result.convert("RGB")

    def pixels(self):
        """What the encoder gets, `(1, 3, h, w)` from -1 to 1."""
        return torch.from_numpy(np.moveaxis(np.array(self.image).astype(np.float32) / 255.0, 2, 0)[None]) * 2 - 1

    def latent_mask(self, size):
        """The mask of latents of `size` (w, h), 1 where they are new, `(h, w)`."""
        values = np.array(self.mask.convert("RGB").resize(size), dtype=np.float32)[:, :, 0] / 255
        return torch.from_numpy(np.around(values) if self.rounded else values)

    def condition(self, latents_size, weight):
        """`inpainting_image_conditioning` of modules/processing.py: the mask `(1, 1, h, w)` of a network with nine channels,
        and the pixels `(1, 3, H, W)` whose latents it gets."""
        pixels = self.pixels()
        if self.mask is None:
            mask = torch.ones(1, 1, *pixels.shape[-2:])
        else:
            mask = torch.from_numpy(np.array(self.mask).astype(np.float32) / 255.0)[None, None]
            mask = torch.round(mask) if self.rounded else mask
        masked = torch.lerp(pixels, pixels * (1.0 - mask), weight)
        return torch.nn.functional.interpolate(mask, size=latents_size), masked


# --------------------------------------------------------------------------------------------------
# Sampling


class Levels:
    """k-diffusion's `DiscreteSchedule` (k_diffusion/external.py) of Stable Diffusion's betas."""

    def __init__(self):
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
        self.alphas_cumprod = torch.cumprod(1 - betas, 0).float()
        self.sigmas = ((1 - self.alphas_cumprod) / self.alphas_cumprod) ** 0.5
        self.log_sigmas = self.sigmas.log()

    def t_of(self, sigma):
        """`sigma_to_t` without quantization."""
        log_sigma = sigma.log()
        low = int((log_sigma - self.log_sigmas).ge(0).cumsum(0).argmax().clamp(max=998))
        a, b = self.log_sigmas[low], self.log_sigmas[low + 1]
        w = ((a - log_sigma) / (a - b)).clamp(0, 1)
        return (1 - w) * low + w * (low + 1)

    def uniform(self, n):
        """`get_sigmas`: evenly spaced timesteps."""
        t = torch.linspace(999, 0, n)
        low, high, w = t.floor().long(), t.ceil().long(), t.frac()
        return torch.cat([((1 - w) * self.log_sigmas[low] + w * self.log_sigmas[high]).exp(), torch.zeros(1)])

    def karras(self, n):
        """`get_sigmas_karras` of k_diffusion/sampling.py, rho 7."""
        low, high = self.sigmas[0].item() ** (1 / 7), self.sigmas[-1].item() ** (1 / 7)
        ramp = torch.linspace(0, 1, n)
        return torch.cat([(high + ramp * (low - high)) ** 7, torch.zeros(1)])


def euler(denoise, x, sigmas, _):
    """`sample_euler` of k_diffusion/sampling.py."""
    for sigma, following in zip(sigmas, sigmas[1:]):
        x = x + (x - denoise(x, sigma)) / sigma * (following - sigma)
    return x


def euler_a(denoise, x, sigmas, noise):
    """`sample_euler_ancestral`."""
    for sigma, following in zip(sigmas, sigmas[1:]):
        denoised = denoise(x, sigma)
        up = min(following, (following**2 * (sigma**2 - following**2) / sigma**2) ** 0.5)
        down = (following**2 - up**2) ** 0.5
        x = x + (x - denoised) / sigma * (down - sigma)
        if following > 0:
            x = x + noise() * up
    return x


def heun(denoise, x, sigmas, _):
    """`sample_heun`."""
    for sigma, following in zip(sigmas, sigmas[1:]):
        d = (x - denoise(x, sigma)) / sigma
        if following == 0:
            x = x + d * (following - sigma)
        else:
            there = x + d * (following - sigma)
            x = x + (d + (there - denoise(there, following)) / following) / 2 * (following - sigma)
    return x


def dpmpp_2m(denoise, x, sigmas, _):
    """`sample_dpmpp_2m`."""
    old = None
    for i, (sigma, following) in enumerate(zip(sigmas, sigmas[1:])):
        denoised = denoise(x, sigma)
        t, t_next = -sigma.log(), -following.log()
        h = t_next - t
        mixed = denoised
        if old is not None and following > 0:
            r = (t + sigmas[i - 1].log()) / h
            mixed = (1 + 1 / (2 * r)) * denoised - 1 / (2 * r) * old
        x = following / sigma * x - (-h).expm1() * mixed
        old = denoised
    return x


SAMPLERS = {"euler": euler, "euler_a": euler_a, "heun": heun, "dpmpp_2m": dpmpp_2m}


def steps_of(steps, strength):
    """`setup_img2img_steps` of modules/sd_samplers_common.py."""
    return int(min(strength, 0.999) * steps)


def latent_blend(options, a, b, t):
    """`latent_blend` of extensions-builtin/soft-inpainting: `a` where `t` is 0, `b` where it is 1; `t` is `(h, w)`."""
    power = options["contrast"]
    mixed = a * (1 - t) + b * t
    magnitude = torch.norm(mixed, p=2, dim=1, keepdim=True).double() + 0.00001
    of_a = torch.norm(a, p=2, dim=1, keepdim=True).double() ** power * (1 - t)
    of_b = torch.norm(b, p=2, dim=1, keepdim=True).double() ** power * t
    return mixed * ((of_a + of_b) ** (1 / power) / magnitude).float()


SOFT = {"bias": 1, "preservation": 0.5, "contrast": 4, "influence": 0, "threshold": 0.5, "difference_contrast": 2}


def sample(predict, latents, noise, *, sampler, steps, strength, levels, kept=None, soft=None, multiplier=1.0):
    """`sample` of `StableDiffusionProcessingImg2Img` with `sample_img2img` of modules/sd_samplers_kdiffusion.py and
    `CFGDenoiser.forward` of modules/sd_samplers_cfg_denoiser.py.

    `predict(x, sigma)` is the guided image. `latents` are the input's, `noise()` draws in the order of the seed's generator,
    `kept` is the mask `(h, w)` with 1 where latents are new, `soft` has the options of soft inpainting.
    """
    start = steps - steps_of(steps, strength) - 1
    sigmas = (levels.karras(steps) if sampler == "dpmpp_2m" else levels.uniform(steps))[start:]

    def denoise(x, sigma):
        denoised = predict(x, sigma)
        if kept is None:
            return denoised
        if soft is None:
            return denoised * kept + latents * (1 - kept)
        t = torch.pow(kept, sigma ** soft["bias"] * soft["preservation"])
        return latent_blend(soft, latents, denoised, t)

    x = SAMPLERS[sampler](denoise, latents + noise() * multiplier * sigmas[0], sigmas, noise)
    return x if kept is None or soft is not None else x * kept + latents * (1 - kept)


def sample_ddim(eps_of, latents, noise, *, steps, strength, levels, kept=None, multiplier=1.0):
    """The same with `ddim` of modules/sd_samplers_timesteps_impl.py and `sample_img2img` of modules/sd_samplers_timesteps.py,
    whose denoiser blends the latents before the network (`mask_before_denoising`). `eps_of(x, t)` is the guided noise."""
    encoded = steps_of(steps, strength)
    times = [min(t + 1, 999) for t in range(0, 1000, 1000 // steps)]
    a = levels.alphas_cumprod
    x = latents * a[times[encoded]].sqrt() + noise() * multiplier * (1 - a[times[encoded]]).sqrt()
    times = times[:encoded][::-1]
    for t, following in zip(times, times[1:]):
        seen = x if kept is None else x * kept + latents * (1 - kept)
        eps = eps_of(seen, t)
        x0 = (x - (1 - a[t]).sqrt() * eps) / a[t].sqrt()
        x = a[following].sqrt() * x0 + (1 - a[following]).sqrt() * eps
    return x if kept is None else x * kept + latents * (1 - kept)


# --------------------------------------------------------------------------------------------------
# The composite of soft inpainting


def gaussian_kernel(deviation, radius):
    """`get_gaussian_kernel` of extensions-builtin/soft-inpainting."""
    zero = math.exp(-((radius + 1) ** 2) / deviation**2)
    size = range(-radius, radius + 1)
    values = [[max(0.0, (math.exp(-(x * x + y * y) / deviation**2) - zero) / (1 - zero)) for x in size] for y in size]
    return np.array(values)


def histogram_filter(image, kernel, low, high):
    """`weighted_histogram_filter` with `min_width` 1: the mean of the values between two percentiles of each window."""
    radius, out = kernel.shape[0] // 2, image.copy()
    height, width = image.shape
    for y in range(height):
        for x in range(width):
            near = [
                (image[j, i], kernel[j - y + radius, i - x + radius])
                for j in range(max(0, y - radius), min(height, y + radius + 1))
                for i in range(max(0, x - radius), min(width, x + radius + 1))
            ]
            near.sort(key=lambda pair: pair[0])
            ends = np.cumsum([0.0] + [weight for _, weight in near])
            total = ends[-1]
            begin, end = total * low, total * high
            if end - begin < 1:
                middle = (begin + end) / 2
                begin, end = middle - 0.5, middle + 0.5
                if end > total:
                    begin, end = total - 1, total
                if begin < 0:
                    begin, end = 0, 1
            value = weight = 0.0
            for (v, _), first, last in zip(near, ends, ends[1:]):
                if begin >= last:
                    continue
                if end <= first:
                    break
                share = min(end, last) - max(begin, first)
                value, weight = value + float(v) * share, weight + share
            out[y, x] = value / weight if weight else 0
    return out


def adaptive_mask(options, kept, before, after):
    """`apply_adaptive_masks` up to the size of the latents: what is seen of the result, `(h, w)` in bytes. `kept` is `(h, w)`,
    the latents are `(1, c, h, w)`."""
    scalar = 1 - kept.clamp(0, 1) ** (options["preservation"] / 2)
    scalar = 0.5 * (1 - options["influence"]) + scalar * options["influence"]
    scalar = (scalar / (1.00001 - scalar)).numpy()
    distance = torch.norm(after - before, p=2, dim=1)[0].numpy()
    kernel = gaussian_kernel(1.5, 2)
    distance = histogram_filter(distance, kernel, 0.9, 1)
    distance = histogram_filter(distance, kernel, 0.25, 0.75)
    value = distance / (options["threshold"] * scalar)
    value = 1 / (1 + value ** options["difference_contrast"])
    value = 1 - value * value * value * (value * (6 * value - 15) + 10)
    return (255.0 * value).astype(np.uint8)


def composite_mask(prepared, mask):
    """The rest of `apply_adaptive_masks`: the mask of the input around the result."""
    mask = resize(2, Image.fromarray(mask), *prepared.image.size).convert("L")
    mask = mask.filter(ImageFilter.GaussianBlur(radius=4))
    return prepared.uncrop(mask).convert("L")
