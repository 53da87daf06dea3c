"""Callbacks of diffusers that turn guidance off, and their base classes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kiln.errors import RequestError


class PipelineCallback:
    """A callback that acts from a step on: `cutoff_step_index`, or the part `cutoff_step_ratio` of all steps."""

    #: The tensors that it asks for.
    tensor_inputs: Sequence[str] = ()

    def __init__(self, cutoff_step_ratio: float | None = 1.0, cutoff_step_index: int | None = None) -> None:
        if (cutoff_step_ratio is None) == (cutoff_step_index is None):
            name = "cutoff_step_ratio"
            raise RequestError("give one of `cutoff_step_ratio` and `cutoff_step_index`, and None for the other", name)
        if cutoff_step_ratio is not None and not (isinstance(cutoff_step_ratio, float) and 0.0 <= cutoff_step_ratio <= 1.0):
            name = "cutoff_step_ratio"
            raise RequestError(f"`{name}` is {cutoff_step_ratio!r}, expected a float from 0 to 1", name)
        self.config = SimpleNamespace(cutoff_step_ratio=cutoff_step_ratio, cutoff_step_index=cutoff_step_index)

    def cutoff_step(self, pipeline: Any) -> int:
        """The step from which it acts."""
        index = self.config.cutoff_step_index
        return int(pipeline.num_timesteps * self.config.cutoff_step_ratio) if index is None else index

    def callback_fn(self, pipeline: Any, step_index: int, timestep: Any, callback_kwargs: dict[str, Any]) -> dict[str, Any]:
        """What it does after a step."""
        raise NotImplementedError(f"{type(self).__name__} has no method callback_fn")

    def __call__(self, pipeline: Any, step_index: int, timestep: Any, callback_kwargs: dict[str, Any]) -> dict[str, Any]:
        return self.callback_fn(pipeline, step_index, timestep, callback_kwargs)


class MultiPipelineCallbacks:
    """Several callbacks, one after the other."""

    def __init__(self, callbacks: Sequence[PipelineCallback]) -> None:
        self.callbacks = list(callbacks)

    @property
    def tensor_inputs(self) -> list[str]:
        return list(dict.fromkeys(name for callback in self.callbacks for name in callback.tensor_inputs))

    def __call__(self, pipeline: Any, step_index: int, timestep: Any, callback_kwargs: dict[str, Any]) -> dict[str, Any]:
        for callback in self.callbacks:
            callback_kwargs = callback(pipeline, step_index, timestep, callback_kwargs)
        return callback_kwargs


class SDCFGCutoffCallback(PipelineCallback):
    """Turns guidance off, for Stable Diffusion 1 and 2."""

    tensor_inputs = ("prompt_embeds",)

    def callback_fn(self, pipeline: Any, step_index: int, timestep: Any, callback_kwargs: dict[str, Any]) -> dict[str, Any]:
        if step_index == self.cutoff_step(pipeline):
            pipeline._guidance_scale = 0.0
            for name in self.tensor_inputs:
                callback_kwargs[name] = callback_kwargs[name][-1:]
        return callback_kwargs


class SDXLCFGCutoffCallback(SDCFGCutoffCallback):
    """Turns guidance off, for Stable Diffusion XL."""

    tensor_inputs = ("prompt_embeds", "add_text_embeds", "add_time_ids")


class SDXLControlnetCFGCutoffCallback(SDXLCFGCutoffCallback):
    """Turns guidance off, for Stable Diffusion XL with ControlNets."""
