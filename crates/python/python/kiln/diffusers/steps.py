"""The part that a script has in the steps of a call: its generators, and its callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kiln import _kiln
from kiln.diffusers.arguments import shown
from kiln.diffusers.generators import Draws
from kiln.diffusers.tensors import Conditions, of_script
from kiln.errors import RequestError

if TYPE_CHECKING:
    from kiln.diffusers.base import Pipeline

#: The names of a callback's tensors of which Kiln hands out what they are, and not their values.
CONDITIONS = (
    "prompt_embeds",
    "negative_prompt_embeds",
    "add_text_embeds",
    "add_time_ids",
    "pooled_prompt_embeds",
    "negative_pooled_prompt_embeds",
)
#: Those that hold both halves of a guided step.
_BOTH = ("prompt_embeds", "add_text_embeds", "add_time_ids", "pooled_prompt_embeds")


def tensor_inputs(callback: Any, named: Sequence[str] | None) -> list[str]:
    """The names of the tensors that a callback asks for."""
    names = list(getattr(callback, "tensor_inputs", None) or (["latents"] if named is None else named))
    for name in names:
        if name != "latents" and name not in CONDITIONS:
            field = "callback_on_step_end_tensor_inputs"
            raise RequestError(f"`{field}` has {name!r}, expected of latents, {', '.join(CONDITIONS)}", field)
    return names


class Steps:
    """What the engine asks in one run: the images of a prompt, which are `first` and those after it."""

    def __init__(
        self,
        pipe: Pipeline,
        draws: Draws,
        first: int,
        input_latents: Any,
        callback: tuple[Callable[..., Any], list[str]] | None,
        timesteps: list[float],
        stops_at: int | None,
    ) -> None:
        self._pipe, self._draws, self._first, self._input = pipe, draws, first, input_latents
        self._callback, self._timesteps, self._stops_at = callback, timesteps, stops_at
        #: The step after which a callback has ended the run.
        self.stopped_at: int | None = None
        self.sees_steps = callback is not None

    @property
    def is_needed(self) -> bool:
        """Whether the engine has anything to ask."""
        return self.sees_steps or self._draws.is_needed or self._input is not None

    def noise(self, number: int, is_of_input: bool, first: int, shape: tuple[int, int, int, int]) -> Any:
        """A draw of noise; None where the engine draws."""
        return self._draws.part(number, is_of_input, self._first + first, shape)

    def input_latents(self) -> Any:
        """The latents of input images; None where the engine encodes them."""
        return self._input

    def after_step(self, done: int, total: int, latents: _kiln.Elements) -> tuple[Any, float | None, bool]:
        """Calls the callback. The latents and the strength of guidance where it changed them, and whether no step follows."""
        del total
        if self._callback is None:
            return None, None, False
        (callback, names), pipe, step = self._callback, self._pipe, done - 1
        scale = pipe._guidance_scale
        shown_latents = lambda: self._pipe._shown_latents(of_script(latents))
        given = {name: shown_latents() if name == "latents" else self._conditions(name) for name in names}
        before = given["latents"] if "latents" in given else None
        kept = None if before is None else before.copy() if hasattr(before, "copy") else before.clone()
        changed = callback(pipe, step, self._timestep(step), dict(given))
        ends = pipe._interrupt or step == self._stops_at
        if ends:
            self.stopped_at = step
        if changed is not None and not isinstance(changed, Mapping):
            raise RequestError(f"`callback_on_step_end` returned {shown(changed)}, expected a dict", "callback_on_step_end")
        new = self._changes(changed or {}, latents, before, kept)
        return new, pipe._steered(float(pipe._guidance_scale)) if pipe._guidance_scale != scale else None, ends

    def _timestep(self, step: int) -> Any:
        import numpy

        # A number that has `item()`, as a tensor has.
        return numpy.float64(self._timesteps[min(step, len(self._timesteps) - 1)])

    def _conditions(self, name: str) -> Conditions:
        is_guided = self._pipe.do_classifier_free_guidance
        if name in _BOTH and is_guided:
            return Conditions(name, ("unconditional", "conditional"))
        return Conditions(name, ("unconditional" if name.startswith("negative") else "conditional",))

    def _changes(self, changed: Mapping[str, Any], latents: _kiln.Elements, before: Any, kept: Any) -> Any:
        """The latents that a callback has changed: those that it returned, or those that it was given, in their place."""
        for name, value in changed.items():
            if name != "latents" and not (name in CONDITIONS and isinstance(value, Conditions) and value._name == name):
                raise RequestError(
                    f"`callback_on_step_end` changes {name!r} to {shown(value)}; Kiln takes latents, and guidance by "
                    "pipe._guidance_scale",
                    "callback_on_step_end",
                )
            if isinstance(value, Conditions) and "conditional" not in value._parts and not name.startswith("negative"):
                raise RequestError(f"`callback_on_step_end` leaves out the conditional part of {name!r}", "callback_on_step_end")
        new = changed.get("latents", before)
        if new is None or (new is before and bool((before == kept).all())):
            return None
        array = self._pipe._engine_latents(new, tuple(latents.shape))
        if list(array.shape) != list(latents.shape):
            raise RequestError(f"`latents` has the shape {array.shape}, expected {tuple(latents.shape)}", "latents")
        return array
