"""Images and weights that are not stored: the tests of `crates/compare` make the same numbers."""

import numpy as np
import torch


def hashed(numbers):
    """MurmurHash3's finalizer of 32-bit numbers."""
    x = np.asarray(numbers, dtype=np.uint32).copy()
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    return x


def image(width, height):
    """A pattern of stripes, `(h, w, 3)`."""
    y, x, c = np.mgrid[0:height, 0:width, 0:3]
    return ((3 * x + 5 * y * (c + 1) + x * y // 7 % 64) % 256).astype(np.uint8)


def noisy(pixels, amplitude):
    """The image with values of `-amplitude..amplitude` added."""
    noise = hashed(np.arange(pixels.size)).astype(np.int64) % (2 * amplitude + 1) - amplitude
    return np.clip(pixels.astype(np.int64) + noise.reshape(pixels.shape), 0, 255).astype(np.uint8)


def named(name):
    """FNV-1a of a tensor's name, the begin of its hashed numbers."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    return value


def random_weights(name, shape):
    """The weights of a tensor: positive for linear heads and for factors of normalizations, small for what is added, else of the
    variance that keeps the signal's."""
    count = int(np.prod(shape))
    unit = (hashed(np.arange(count) + named(name) & 0xFFFFFFFF) >> np.uint32(8)).astype(np.float32) / np.float32(2**24)
    if name.startswith("lin"):
        values = unit
    elif name.endswith(("bn.weight", "running_var")):
        values = unit + np.float32(0.5)
    elif name.endswith(("bias", "running_mean")):
        values = (unit - np.float32(0.5)) * np.float32(0.25)
    else:
        values = (unit - np.float32(0.5)) * np.float32(np.sqrt(24 / np.prod(shape[1:])))
    return torch.from_numpy(values.reshape(shape))
