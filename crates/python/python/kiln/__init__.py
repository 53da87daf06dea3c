"""Kiln: Stable Diffusion without PyTorch.

    import kiln
    kiln.Engine("models/emoji").txt2img("a red apple")[0].save("apple.png")
"""

from kiln import _kiln
from kiln.engine import Engine
from kiln.errors import DeviceError, Error, FileError, OutOfMemoryError, RequestError, Stopped
from kiln.image import Array, Image
from kiln.image_list import ImageList
from kiln.reports import devices, inspect, options

__version__: str = _kiln.__version__

__all__ = [
    "Array",
    "DeviceError",
    "Engine",
    "Error",
    "FileError",
    "Image",
    "ImageList",
    "OutOfMemoryError",
    "RequestError",
    "Stopped",
    "devices",
    "inspect",
    "options",
]
