"""A model, which pipelines share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.diffusers.arguments import FROM_PRETRAINED, dtype, is_dtype, known, only, repository, same_dtype, without_harmless
from kiln.diffusers.components import CLASSES, Component, checked, options_of
from kiln.diffusers.schedulers import SCHEDULERS, Scheduler, read_config
from kiln.engine import Engine
from kiln.errors import RequestError


class Model:
    """A model with its place and options. The engine is loaded by its first use, and again after one of them has changed."""

    def __init__(self, path: str, dtype: str, options: Mapping[str, Any]) -> None:
        self.path, self.dtype, self.device, self.options = path, dtype, "cpu", dict(options)
        #: The networks that replace the model's, by the pipeline's attribute.
        self.components: dict[str, Component] = {}
        #: The sampler that the model's configuration names, once it is known.
        self.scheduler: Scheduler | None = None
        self._engine: Engine | None = None
        if not path.startswith("hf:") and os.path.isdir(path):
            self._read_scheduler(path)

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], arguments: Mapping[str, Any]) -> Model:
        """The model of diffusers' `from_pretrained`, which nothing is loaded of."""
        arguments = without_harmless(arguments)
        known("from_pretrained", arguments, FROM_PRETRAINED)
        only("safety_checker", arguments.get("safety_checker"), (None,), "Kiln has no filter of contents")
        only("feature_extractor", arguments.get("feature_extractor"), (None,), "Kiln has no filter of contents")
        only("use_safetensors", arguments.get("use_safetensors"), (None, True), "Kiln chooses the files")
        only("variant", arguments.get("variant"), (None, "fp16"), "Kiln chooses the files by the type")
        only("device_map", arguments.get("device_map"), (None, "cpu", "cuda"), "a model runs on one device")
        only("tokenizer_3", arguments.get("tokenizer_3"), (None,), "Kiln reads the model's own")
        only("text_encoder_3", arguments.get("text_encoder_3"), (None,), "Kiln reads the model's own")
        path = repository(name)
        if arguments.get("revision"):
            path += f"@{arguments['revision']}"
        options: dict[str, Any] = {"offline": True} if arguments.get("local_files_only") else {}
        if "text_encoder_3" in arguments:
            options["no_t5"] = True  # None: the model runs without it
        if arguments.get("config") is not None:
            options["config"] = os.fspath(arguments["config"])
        model = cls(path, dtype(arguments.get("dtype", arguments.get("torch_dtype"))), options)
        model.device = arguments.get("device_map") or "cpu"
        for part in CLASSES:
            if arguments.get(part) is not None:
                model._put(part, checked(part, arguments[part]))
        return model

    @property
    def engine(self) -> Engine:
        """Kiln's engine."""
        if self._engine is None:
            options = {**self.options, **dict(options_of(self.components))}
            self._engine = Engine(self.path, device=self.device, dtype=self.dtype, **options)  # type: ignore[misc]
            if os.path.isdir(self._engine.path):
                self._read_scheduler(self._engine.path)
        return self._engine

    def folder(self) -> str:
        """The folder or file of the model; one of the Hugging Face Hub is loaded to know it."""
        return self.engine.path if self.path.startswith("hf:") else self.path

    def _read_scheduler(self, folder: str) -> None:
        if self.scheduler is None:
            config = read_config(Path(folder, "scheduler"))
            kind = SCHEDULERS.get(config.get("_class_name", ""), Scheduler)
            self.scheduler = kind(config, {})

    def component(self, name: str) -> Component:
        """The model's network of this name."""
        if name not in self.components:
            folder = self.folder()
            kind = CLASSES[name][0]
            own = kind(os.path.join(folder, name) if os.path.isdir(folder) else folder)
            return own._is_of(self, self.set)
        return self.components[name]

    def with_component(self, name: str, component: Component) -> Model:
        """The same model with another network, for one pipeline: others keep theirs."""
        made = Model.__new__(Model)
        made.__dict__.update(self.__dict__)
        made.options, made.components, made._engine = dict(self.options), dict(self.components), None
        made._put(name, component)
        return made

    def _put(self, name: str, component: Component) -> None:
        same_dtype(type(component).__name__, component._dtype, self.dtype)
        self.components[name] = component._is_of(self, lambda *_: self._close())

    def to(self, places: tuple[Any, ...]) -> None:
        """Moves the model to a device, gives it a type, or both."""
        before = (self.device, self.dtype)
        for place in places:
            text = str(place)
            if is_dtype(place):
                self.dtype = dtype(place)
            elif text == "cpu" or text.split(":")[0] == "cuda":
                self.device = text
            else:
                raise RequestError(f"`device` is {text!r}, expected cpu, cuda or cuda:N", "device")
        if before != (self.device, self.dtype):
            self._close()

    def with_dtype(self, name: str) -> Model:
        """The same model in another type, for one pipeline: others keep theirs."""
        if name == self.dtype:
            return self
        made = Model.__new__(Model)
        made.__dict__.update(self.__dict__)
        made.options, made.dtype, made._engine = dict(self.options), name, None
        return made

    def set(self, option: str, value: Any) -> None:
        """Sets an option of the engine; None is its default."""
        if self.options.get(option) != value:
            self.options[option] = value
            self._close()

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
