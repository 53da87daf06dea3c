"""A model, which pipelines share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.diffusers.arguments import FROM_PRETRAINED, dtype, known, only, repository
from kiln.diffusers.schedulers import SCHEDULERS, Scheduler, read_config
from kiln.engine import Engine
from kiln.errors import RequestError


class Model:
    """A model with its place and options. The engine is loaded by its first use, and again after one of them has changed."""

    def __init__(self, path: str, dtype: str, options: Mapping[str, Any]) -> None:
        self.path, self.dtype, self.device, self.options = path, dtype, "cpu", dict(options)
        #: The sampler that the model's configuration names, once it is known.
        self.scheduler: Scheduler | None = None
        self._engine: Engine | None = None
        if not path.startswith("hf:") and os.path.isdir(path):
            self._read_scheduler(path)

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], arguments: Mapping[str, Any]) -> Model:
        """The model of diffusers' `from_pretrained`, which nothing is loaded of."""
        known("from_pretrained", arguments, FROM_PRETRAINED)
        only("safety_checker", arguments.get("safety_checker"), (None,), "Kiln has no filter of contents")
        only("feature_extractor", arguments.get("feature_extractor"), (None,), "Kiln has no filter of contents")
        only("use_safetensors", arguments.get("use_safetensors"), (None, True), "Kiln chooses the files")
        only("variant", arguments.get("variant"), (None, "fp16"), "Kiln chooses the files by the type")
        only("device_map", arguments.get("device_map"), (None, "cpu", "cuda"), "a model runs on one device")
        path = repository(name)
        if arguments.get("revision"):
            path += f"@{arguments['revision']}"
        options = {"offline": True} if arguments.get("local_files_only") else {}
        model = cls(path, dtype(arguments.get("dtype", arguments.get("torch_dtype"))), options)
        model.device = arguments.get("device_map") or "cpu"
        return model

    @property
    def engine(self) -> Engine:
        """Kiln's engine."""
        if self._engine is None:
            self._engine = Engine(self.path, device=self.device, dtype=self.dtype, **self.options)  # type: ignore[misc]
            if os.path.isdir(self._engine.path):
                self._read_scheduler(self._engine.path)
        return self._engine

    def _read_scheduler(self, folder: str) -> None:
        if self.scheduler is None:
            config = read_config(Path(folder, "scheduler"))
            kind = SCHEDULERS.get(config.get("_class_name", ""), Scheduler)
            self.scheduler = kind(config, {})

    def to(self, places: tuple[Any, ...]) -> None:
        """Moves the model to a device, gives it a type, or both."""
        before = (self.device, self.dtype)
        for place in places:
            text = str(place)
            if text.startswith("torch.") or text in ("f32", "f16", "bf16"):
                self.dtype = dtype(place)
            elif text == "cpu" or text.split(":")[0] == "cuda":
                self.device = text
            else:
                raise RequestError(f"`device` is {text!r}, expected cpu, cuda or cuda:N", "device")
        if before != (self.device, self.dtype):
            self._close()

    def set(self, option: str, value: Any) -> None:
        """Sets an option of the engine; None is its default."""
        if self.options.get(option) != value:
            self.options[option] = value
            self._close()

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
