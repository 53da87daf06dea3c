"""Schedulers of diffusers: Kiln's samplers, with what a script changes of the model's configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.errors import FileError, RequestError


class Scheduler:
    """A sampler, with the noise levels of a model's configuration."""

    #: Kiln's name.
    sampler = ""

    def __init__(self, config: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        self.base = dict(config)
        self._changes = dict(changes)
        self.timesteps: list[float] = []
        self.fields()

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | Scheduler, **changes: Any) -> Any:
        """The sampler for a model's configuration; `changes` are those of docs/python.md."""
        base = config.config if isinstance(config, Scheduler) else config
        if isinstance(base, _Config):
            changes = {**{name: base[name] for name in base.changed if name in _KNOWN_CHANGES}, **changes}
            base = base.base
        return cls(base, changes)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], subfolder: str = "", **changes: Any) -> Any:
        """The sampler for the configuration in a model's folder."""
        return cls(read_config(Path(path, subfolder)), changes)

    @property
    def config(self) -> _Config:
        return _Config(self.base, self._changes, type(self).__name__)

    def fields(self) -> dict[str, Any]:
        """The fields of a request."""
        changes = {name: value for name, value in self._changes.items() if self.base.get(name) != value}
        sampler = self.sampler
        schedules = {"use_karras_sigmas": "karras", "use_exponential_sigmas": "exponential", "use_beta_sigmas": "beta_sigmas"}
        named = [schedule for name, schedule in schedules.items() if changes.pop(name, False)]
        spacing = changes.pop("timestep_spacing", None)
        if spacing == "trailing":
            named.append("trailing")
        elif spacing is not None:
            raise RequestError(f"`timestep_spacing` is {spacing!r}, expected the model's own, or 'trailing'", "timestep_spacing")
        algorithm = changes.pop("algorithm_type", "dpmsolver++")
        if algorithm == "sde-dpmsolver++" and sampler == "dpmpp_2m":
            sampler = "dpmpp_2m_sde"
        elif algorithm != "dpmsolver++":
            raise RequestError(
                f"`algorithm_type` is {algorithm!r}, expected 'dpmsolver++', or 'sde-dpmsolver++' of DPMSolverMultistepScheduler",
                "algorithm_type",
            )
        if changes.pop("solver_order", 2) != 2:
            raise RequestError("`solver_order` is not 2, which is the order of Kiln's sampler", "solver_order")
        if changes:
            name = next(iter(changes))
            raise RequestError(f"`{name}` of {type(self).__name__} is not one of {', '.join(_KNOWN_CHANGES)}", name)
        if len(named) > 1:
            raise RequestError(f"{' and '.join(named)}, expected one spacing of the noise levels", "scheduler")
        return {"sampler": sampler, **({"scheduler": named[0]} if named else {})}

    def __repr__(self) -> str:
        return f"{type(self).__name__} {json.dumps(dict(self.config))}"


_KNOWN_CHANGES = (
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "timestep_spacing",
    "algorithm_type",
    "solver_order",
)


class _Config(dict[str, Any]):
    """A configuration, with what was changed of the model's."""

    def __init__(self, base: Mapping[str, Any], changes: Mapping[str, Any], name: str) -> None:
        super().__init__({**base, **changes, "_class_name": name})
        self.base = dict(base)
        self.changed = list(changes)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "scheduler_config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}; expected the configuration of a scheduler") from error


def _class(name: str, sampler: str) -> type[Scheduler]:
    return type(name, (Scheduler,), {"sampler": sampler, "__doc__": f"Kiln's sampler `{sampler}`.", "__module__": __name__})


DDIMScheduler = _class("DDIMScheduler", "ddim")
DDPMScheduler = _class("DDPMScheduler", "ddpm")
DEISMultistepScheduler = _class("DEISMultistepScheduler", "deis")
DPMSolverMultistepScheduler = _class("DPMSolverMultistepScheduler", "dpmpp_2m")
DPMSolverSDEScheduler = _class("DPMSolverSDEScheduler", "dpmpp_sde")
EulerAncestralDiscreteScheduler = _class("EulerAncestralDiscreteScheduler", "euler_a")
EulerDiscreteScheduler = _class("EulerDiscreteScheduler", "euler")
HeunDiscreteScheduler = _class("HeunDiscreteScheduler", "heun")
KDPM2AncestralDiscreteScheduler = _class("KDPM2AncestralDiscreteScheduler", "dpm2_a")
KDPM2DiscreteScheduler = _class("KDPM2DiscreteScheduler", "dpm2")
LCMScheduler = _class("LCMScheduler", "lcm")
LMSDiscreteScheduler = _class("LMSDiscreteScheduler", "lms")
PNDMScheduler = _class("PNDMScheduler", "pndm")
TCDScheduler = _class("TCDScheduler", "tcd")
UniPCMultistepScheduler = _class("UniPCMultistepScheduler", "unipc")

SCHEDULERS: dict[str, type[Scheduler]] = {scheduler.__name__: scheduler for scheduler in Scheduler.__subclasses__()}
