"""An engine: a loaded model."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Unpack

from kiln import _kiln
from kiln._fields import options_json, plain, request_json
from kiln.errors import RequestError, Stopped
from kiln.image import Array, Image, ImageLike, StrPath, image_files
from kiln.image_list import ImageList
from kiln.keywords import EngineOptions, ImageOptions, PlanOptions, SetOptions
from kiln.reports import options as _options

_FORMATS = ("jsonl", "csv", "text")


class Engine:
    """A loaded model. Without a path it is the model that comes with Kiln, where that is found.

    Calls of several threads take turns; several engines run at once. The lock of the interpreter is free while an engine
    computes. `close()`, the end of a `with` block, or the last reference gives the memory back.
    """

    def __init__(self, model: StrPath | None = None, **options: Unpack[EngineOptions]) -> None:
        self._engine = _kiln.Engine(None if model is None else os.fspath(model), options_json(options))
        self._model: dict[str, Any] = json.loads(self._engine.model())

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model["name"]

    @property
    def path(self) -> str:
        """The model's folder or file."""
        return self._model["path"]

    @property
    def defaults(self) -> dict[str, Any]:
        """The model's family, and its defaults: width, height, steps, cfg_scale, guidance, sampler, size_multiple."""
        return {name: value for name, value in self._model.items() if name not in ("name", "path")}

    def txt2img(self, prompt: str, **options: Unpack[ImageOptions]) -> ImageList:
        """Makes images of a prompt."""
        return self._generate({**_without_init(options), "prompt": prompt})

    def img2img(self, prompt: str, init: ImageLike, **options: Unpack[ImageOptions]) -> ImageList:
        """Makes images of a prompt and an image to begin with."""
        return self._generate({**options, "prompt": prompt, "init": _given(init)})

    async def atxt2img(self, prompt: str, **options: Unpack[ImageOptions]) -> ImageList:
        """As `txt2img`, on a thread; canceling the task stops the call at its next step."""
        return await _on_thread(self._generate, {**_without_init(options), "prompt": prompt})

    async def aimg2img(self, prompt: str, init: ImageLike, **options: Unpack[ImageOptions]) -> ImageList:
        """As `img2img`, on a thread; canceling the task stops the call at its next step."""
        return await _on_thread(self._generate, {**options, "prompt": prompt, "init": _given(init)})

    def _generate(self, fields: Mapping[str, Any], stop: _kiln.Stop | None = None, steering: Any = None) -> ImageList:
        fields = dict(fields)
        on_step: Callable[[int, int], object] | None = fields.pop("on_step", None)
        on_preview: Callable[[int, int, Array], object] | None = fields.pop("on_preview", None)
        every = fields.pop("preview_every", 1)
        hear = None
        if on_preview is not None:

            def hear(index: int, step: int, pixels: _kiln.Elements) -> object:
                return on_preview(index, step, Array(pixels))

        with image_files() as files:
            request = request_json(fields, files)
            try:
                made = self._engine.generate(request, on_step, hear, every, stop, steering)
                return ImageList(Image(image) for image in made)
            except Stopped as stopped:
                stopped.images = [Image(image) for image in vars(stopped).pop("generated", [])]
                raise

    def upscale(
        self,
        image: ImageLike,
        scale: float | None = None,
        *,
        upscaler: StrPath = "lanczos",
        upscaler_dir: StrPath | None = None,
    ) -> Image:
        """Enlarges an image by `scale`: by a filter (lanczos, bicubic, bilinear, nearest), or by a network in a file.

        The scale is 2 for filters, and a network's own, where none is given. Transparent pixels become white.
        """
        return self._upscale(image, scale, upscaler, upscaler_dir)

    async def aupscale(
        self,
        image: ImageLike,
        scale: float | None = None,
        *,
        upscaler: StrPath = "lanczos",
        upscaler_dir: StrPath | None = None,
    ) -> Image:
        """As `upscale`, on a thread."""
        return await _on_thread(self._upscale, image, scale, upscaler, upscaler_dir)

    def _upscale(
        self,
        image: ImageLike,
        scale: float | None,
        upscaler: StrPath,
        upscaler_dir: StrPath | None,
        stop: _kiln.Stop | None = None,
    ) -> Image:
        with image_files() as files:
            path = files.path("image", image)
            folder = None if upscaler_dir is None else os.fspath(upscaler_dir)
            return Image(self._engine.upscale(path, plain("scale", scale), os.fspath(upscaler), folder, stop))

    def plan(self, prompt: str = "", **options: Unpack[PlanOptions]) -> dict[str, Any]:
        """The memory that a request takes in every mode, as `kiln plan --json` has it. Nothing is computed."""
        with image_files() as files:
            return json.loads(self._engine.plan(request_json({**options, "prompt": prompt}, files)))

    def timesteps(self, prompt: str = "", **options: Unpack[PlanOptions]) -> list[float]:
        """The timesteps that the denoiser is called with, in their order."""
        with image_files() as files:
            return self._engine.timesteps(request_json({**options, "prompt": prompt}, files))

    def batch(
        self,
        jobs: StrPath | Iterable[str | Mapping[str, Any]] | None,
        output: StrPath,
        *,
        on_event: Callable[[dict[str, Any]], object] | None = None,
        **options: Unpack[SetOptions],
    ) -> dict[str, Any]:
        """Makes an image set in the folder `output`, as `kiln batch` does, and returns its report.

        `jobs` is a job file, or prompts and requests; None is for a grid alone. A second call with the same jobs makes what
        is missing. `set` and `grid` are fields with values: `{"steps": 30}`, `{"seed": "1..4"}`, or as on the command line.
        """
        return self._batch(jobs, output, on_event, options)

    async def abatch(
        self,
        jobs: StrPath | Iterable[str | Mapping[str, Any]] | None,
        output: StrPath,
        *,
        on_event: Callable[[dict[str, Any]], object] | None = None,
        **options: Unpack[SetOptions],
    ) -> dict[str, Any]:
        """As `batch`, on a thread; canceling the task stops the set, which a later call continues."""
        return await _on_thread(self._batch, jobs, output, on_event, options)

    def _batch(
        self,
        jobs: StrPath | Iterable[str | Mapping[str, Any]] | None,
        output: StrPath,
        on_event: Callable[[dict[str, Any]], object] | None,
        options: Mapping[str, Any],
        stop: _kiln.Stop | None = None,
    ) -> dict[str, Any]:
        is_text = jobs is None or not isinstance(jobs, (str, os.PathLike))
        with image_files() as files:
            if is_text:
                lines = ({"prompt": job} if isinstance(job, str) else job for job in jobs or ())
                text = "".join(request_json(line, files) + "\n" for line in lines)
                if jobs is not None and not text:
                    raise RequestError("`jobs` is empty, expected one job at least", "jobs")
            else:
                text = os.fspath(jobs)
            of_set = {
                name: _assignments(value) if name in ("set", "grid") else value for name, value in options.items()
            }
            hear = None if on_event is None else lambda event: on_event(json.loads(event))
            output = os.fspath(output)
            return json.loads(self._engine.batch((text, is_text), output, options_json(of_set), hear, stop))

    def close(self) -> None:
        """Gives the model's memory back. Later calls fail."""
        self._engine.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kiln.Engine {self.name}>"


def _without_init(options: Mapping[str, Any]) -> Mapping[str, Any]:
    if options.get("init") is not None:
        raise RequestError("`init` is given, expected none: img2img begins with an image", "init")
    return options


def _given(init: ImageLike) -> ImageLike:
    if init is None:
        raise RequestError("`init` is None, expected an image to begin with", "init")
    return init


def _assignments(value: Any) -> Any:
    """`{"steps": 30}` as `["steps=30"]`."""
    if not isinstance(value, Mapping):
        return [value] if isinstance(value, str) else value

    def text(part: Any) -> str:
        if isinstance(part, Sequence) and not isinstance(part, str):
            return ",".join(text(one) for one in part)
        return str(part).lower() if isinstance(part, bool) else str(part)

    return [f"{name}={text(part)}" for name, part in value.items()]


async def _on_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a call on a thread of the loop. A canceled task stops it, and ends with it."""
    stop = _kiln.Stop()
    future = asyncio.get_running_loop().run_in_executor(None, functools.partial(call, *arguments, stop=stop))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        with contextlib.suppress(Exception):
            await future
        raise


def _document() -> None:
    """Adds the options of the tables to the documentation of the class."""

    def lines(rows: list[dict[str, Any]]) -> str:
        def line(row: dict[str, Any]) -> str:
            default = f" Default: {row['default']}." if row.get("default") else ""
            return f"    {row['name']}: {row['type']}\n        {row['help']}{default}\n"

        return "".join(map(line, rows))

    tables = _options()
    of_request = [row for row in tables["request"] if row["name"] not in ("prompt", "init")]
    heard = (
        "    on_step: called with the steps that are done and all steps. `False` stops the call.\n"
        "    on_preview: called with an image's index, the step, and a small image `(h, w, 3)`. `False` stops the call.\n"
        "    preview_every: steps between two previews, of which there are five a second at most.\n"
    )
    Engine.__doc__ = f"{Engine.__doc__}\n    Options:\n\n{lines(tables['engine'])}"
    for method in (Engine.txt2img, Engine.img2img):
        method.__doc__ = f"{method.__doc__}\n\n    Options:\n\n{heard}{lines(of_request)}"


_document()
