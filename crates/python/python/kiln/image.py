"""Images and latents: the results of an engine, and what it takes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Union

from kiln import _kiln
from kiln.errors import RequestError

if TYPE_CHECKING:
    import numpy
    import PIL.Image

StrPath = Union[str, "os.PathLike[str]"]
#: A path; an image of Kiln or PIL; an array `(h, w)`, `(h, w, 1)`, `(h, w, 3)` or `(h, w, 4)` of uint8, or of floats from 0 to 1: of
#: NumPy, or of a library with DLPack. Tensors of PyTorch may be `(1 or 3 or 4, h, w)` too.
ImageLike = Any


class Array:
    """Values in the host's memory, which every view shares without a copy: `numpy()`, `torch()`, `memoryview(array.elements)`,
    and any library with DLPack, by its `from_dlpack`."""

    __slots__ = ("elements",)

    def __init__(self, elements: _kiln.Elements) -> None:
        #: The object with the buffer protocol.
        self.elements = elements

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.elements.shape)

    @property
    def dtype(self) -> str:
        """`uint8` or `float32`."""
        return self.elements.dtype

    def numpy(self) -> numpy.ndarray:
        """A NumPy array that shares the memory."""
        import numpy

        return numpy.asarray(self.elements)

    def torch(self) -> Any:
        """A tensor of PyTorch that shares the memory."""
        import torch

        return torch.from_dlpack(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.elements.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.elements.__dlpack_device__()

    def __reduce__(self) -> Any:
        return _array, (_pickled(self.elements),)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shape} {self.dtype}>"


def _pickled(elements: _kiln.Elements) -> tuple[bytes, list[int], str]:
    """The arguments of `_kiln.elements`."""
    return memoryview(elements).tobytes(), list(elements.shape), elements.dtype


def _array(elements: tuple[bytes, list[int], str]) -> Array:
    return Array(_kiln.elements(*elements))


class Image(Array):
    """An image that was made: an array `(height, width, 3)` of uint8, with its settings."""

    __slots__ = ("_generated",)

    def __init__(self, generated: _kiln.Generated) -> None:
        super().__init__(generated.pixels)
        self._generated = generated

    @property
    def width(self) -> int:
        return self.shape[1]

    @property
    def height(self) -> int:
        return self.shape[0]

    @property
    def index(self) -> int:
        """Its index in its call, from 0."""
        return self._generated.index

    @property
    def seed(self) -> int:
        return self._generated.seed

    @property
    def parameters(self) -> str:
        """The settings in AUTOMATIC1111's format. Empty for an upscaled image."""
        return self._generated.parameters

    @property
    def settings(self) -> dict[str, Any]:
        """Kiln's settings: `settings["request"]` makes the image again. Empty for an upscaled image."""
        return json.loads(self._generated.settings or "{}")

    @property
    def latents(self) -> Array | None:
        """The latents that it was decoded from, `(1, channels, h, w)` of float32; None for an upscaled image."""
        latents = self._generated.latents
        return None if latents is None else Array(latents)

    def png(self) -> bytes:
        """A PNG file with the settings, which `kiln inspect` shows and `kiln txt2img --like` repeats."""
        return self._generated.png()

    def save(self, path: StrPath, quality: int = 90) -> None:
        """Writes a file by its name's ending: .png with all settings, .jpg of a `quality` from 1 to 100 and .webp, which is
        lossless, with AUTOMATIC1111's settings. An existing file is replaced, at once and as a whole."""
        path = os.fspath(path)
        ending = os.path.splitext(path)[1].lower().removeprefix(".")
        if ending not in ("png", "jpg", "jpeg", "webp"):
            expected = "a name that ends in .png, .jpg, .jpeg or .webp; pil() writes other formats"
            raise RequestError(f"`path` is {path!r}, expected {expected}", "path")
        if not isinstance(quality, int) or not 1 <= quality <= 100:
            raise RequestError(f"`quality` is {quality!r}, expected a whole number from 1 to 100", "quality")
        data = bytes(self._generated.file(ending, quality))
        folder = os.path.dirname(os.path.abspath(path))
        temporary = os.path.join(folder, f".kiln-{secrets.token_hex(8)}.{ending}")
        try:
            handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise

    def pil(self) -> PIL.Image.Image:
        """An image of PIL, which has a copy of the pixels."""
        import PIL.Image

        return PIL.Image.frombytes("RGB", (self.width, self.height), memoryview(self.elements).tobytes())

    def _repr_png_(self) -> bytes:
        return self.png()

    def __reduce__(self) -> Any:
        made, latents = self._generated, self._generated.latents
        texts = (made.index, made.seed, made.settings, made.parameters)
        return _image, (texts, _pickled(made.pixels), None if latents is None else _pickled(latents))


def _image(texts: tuple[int, int, str, str], pixels: Any, latents: Any) -> Image:
    """A pickled image again."""
    elements = [None if part is None else _kiln.elements(*part) for part in (pixels, latents)]
    return Image(_kiln.generated(*texts, *elements))


class ImageFiles:
    """Input images of one call as files, in a folder that goes with the call."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def path(self, field: str, image: ImageLike) -> str:
        """The file of an image: its own for a path, else a new one with its pixels."""
        if isinstance(image, (str, os.PathLike)):
            return os.fspath(image)
        pixels, size, channels = _pixels(field, image)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="kiln-")
        self._count += 1
        path = os.path.join(self._folder.name, f"{field}-{self._count}.png")
        _kiln.write_png(path, pixels, size, channels)
        return path

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


@contextlib.contextmanager
def image_files() -> Iterator[ImageFiles]:
    files = ImageFiles()
    try:
        yield files
    finally:
        files.close()


def _pixels(field: str, image: ImageLike) -> tuple[Any, tuple[int, int], int]:
    """The bytes of an image row by row, its width and height, and its number of channels."""
    if isinstance(image, Array) and image.dtype == "uint8":
        height, width, channels = image.shape
        return memoryview(image.elements).cast("B"), (width, height), channels
    if type(image).__module__.split(".")[0] == "PIL":
        modes = {"L": 1, "RGB": 3, "RGBA": 4}
        if image.mode not in modes:
            image = image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")
        return image.tobytes(), image.size, modes[image.mode]
    import numpy

    if type(image).__module__.split(".")[0] == "torch":
        image = image.detach()
        if image.dtype.is_floating_point:
            image = image.float()
        # Memory of a GPU is copied; on the CPU nothing is.
        array = numpy.from_dlpack(image.cpu())
        if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
            array = array.transpose(1, 2, 0)
    elif hasattr(image, "__dlpack__") and not isinstance(image, numpy.ndarray):
        array = numpy.from_dlpack(image)
    elif isinstance(image, numpy.ndarray):
        array = image
    else:
        raise RequestError(f"`{field}` is a {type(image).__name__}, expected a path, an image of PIL, or an array", field)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise RequestError(f"`{field}` is an array {array.shape}, expected (h, w), or (h, w, c) with 1, 3 or 4 channels", field)
    if array.dtype.kind == "f":
        if not ((array >= 0) & (array <= 1)).all():
            raise RequestError(f"`{field}` has values outside of 0 to 1, expected floats from 0 to 1, or uint8", field)
        array = numpy.rint(array * 255.0).astype(numpy.uint8)
    elif array.dtype == numpy.bool_:
        array = array.astype(numpy.uint8) * 255
    elif array.dtype != numpy.uint8:
        raise RequestError(f"`{field}` is an array of {array.dtype}, expected uint8, bool, or floats from 0 to 1", field)
    height, width, channels = array.shape
    return numpy.ascontiguousarray(array).reshape(-1), (width, height), channels
