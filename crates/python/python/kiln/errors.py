"""Exceptions. Each has the field that is at fault, where one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiln.image import Image


class Error(Exception):
    """Kiln could not do what was asked for."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        #: The option of a request or of an engine that is at fault.
        self.field = field


class RequestError(Error, ValueError):
    """A value that cannot be: `field` names the option."""


class FileError(Error):
    """A file or a model that is missing, or that is not what it has to be."""


class DeviceError(Error):
    """A device that is not there."""


class OutOfMemoryError(Error, MemoryError):
    """Nothing fits into the memory that there is, or into `vram_budget`."""


class Stopped(Error):
    """A callback returned `False`, or the task was canceled."""

    #: The images that were finished before.
    images: list[Image]

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message, field)
        self.images = []
