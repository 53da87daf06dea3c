"""Schedulers of diffusers: Kiln's samplers, with what a script changes of the model's configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.diffusers.frozen import FrozenConfig
from kiln.errors import FileError, RequestError


class Scheduler:
    """A sampler, with the noise levels of a model's configuration."""

    #: Kiln's name.
    sampler = ""

    #: Calls of the U-Net in a step.
    order = 1
    #: The `solver_type` of Kiln's sampler.
    _solver_type = "midpoint"

    def __init__(self, config: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        self.base = dict(config)
        self._changes = dict(changes)
        self.timesteps: list[float] = []
        self.fields()

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("base", "_changes", "timesteps"):
            raise RequestError(f"`{name}` of {type(self).__name__} cannot be set: Kiln would not use it; use from_config", name)
        object.__setattr__(self, name, value)

    @property
    def compatibles(self) -> list[type[Scheduler]]:
        """The schedulers that can be made from this one's configuration."""
        return list(SCHEDULERS.values())

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
        unset = object()
        plain = {**_PLAIN, "solver_type": self._solver_type}
        levels = self._of_flow() if str(self.base.get("_class_name")).startswith("FlowMatch") else {}
        changes = {
            name: value
            for name, value in self._changes.items()
            if self.base.get(name, plain.get(name, unset)) != value and not (levels and name in _OF_FLOW)
        }
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
            taken = ", ".join(one for one in _KNOWN_CHANGES if levels or one not in _OF_FLOW)
            raise RequestError(f"`{name}` of {type(self).__name__} is not one of {taken}", name)
        if len(named) > 1:
            raise RequestError(f"{' and '.join(named)}, expected one spacing of the noise levels", "scheduler")
        return {"sampler": sampler, **levels, **({"scheduler": named[0]} if named else {})}

    def _of_flow(self) -> dict[str, Any]:
        """The fields of a request for a flow model: its sampler, and the shift of its noise levels where it is another one."""
        kind, levels = type(self).__name__, {"sampler": self.sampler}
        if kind.startswith("FlowMatch"):
            shift, name = self._changes.get("shift", self.base.get("shift", 1.0)), "shift"
        else:
            for name, value in (("use_flow_sigmas", True), ("prediction_type", "flow_prediction")):
                if self._changes.get(name) != value:
                    raise RequestError(f"`{name}` of {kind} is not {value!r}, which a flow model needs", name)
            shift, name = self._changes.get("flow_shift", 1.0), "flow_shift"
        if not isinstance(shift, (int, float)):
            raise RequestError(f"`{name}` is {shift!r}, expected a number", name)
        is_dynamic = self._changes.get("use_dynamic_shifting", self.base.get("use_dynamic_shifting", False))
        if is_dynamic and not self.base.get("use_dynamic_shifting"):
            raise RequestError("`use_dynamic_shifting` is True, expected the model's own, or False", "use_dynamic_shifting")
        is_changed = shift != self.base.get("shift", 1.0) or not is_dynamic and bool(self.base.get("use_dynamic_shifting"))
        return {**levels, "shift": float(shift)} if is_changed and not is_dynamic else levels

    def __repr__(self) -> str:
        return f"{type(self).__name__} {json.dumps(dict(self.config))}"


_KNOWN_CHANGES = (
    "shift",
    "flow_shift",
    "use_flow_sigmas",
    "use_dynamic_shifting",
    "prediction_type",
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "timestep_spacing",
    "algorithm_type",
    "solver_order",
)


#: Arguments of schedulers for flow models.
_OF_FLOW = ("shift", "flow_shift", "use_flow_sigmas", "prediction_type", "use_dynamic_shifting")

#: What arguments of diffusers' schedulers are where they ask for nothing.
_PLAIN: dict[str, Any] = {
    "thresholding": False,
    "rescale_betas_zero_snr": False,
    "euler_at_final": False,
    "use_lu_lambdas": False,
    "use_karras_sigmas": False,
    "use_exponential_sigmas": False,
    "use_beta_sigmas": False,
    "use_flow_sigmas": False,
    "lower_order_final": True,
    "final_sigmas_type": "zero",
    "variance_type": None,
    "trained_betas": None,
    "dynamic_thresholding_ratio": 0.995,
    "sample_max_value": 1.0,
    "interpolation_type": "linear",
    "sigma_min": None,
    "sigma_max": None,
}


class _Config(FrozenConfig):
    """A configuration, with what was changed of the model's."""

    def __init__(self, base: Mapping[str, Any], changes: Mapping[str, Any], name: str) -> None:
        super().__init__({**base, **changes, "_class_name": name})
        self.__dict__["base"] = dict(base)
        self.__dict__["changed"] = list(changes)


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "scheduler_config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}; expected the configuration of a scheduler") from error


class _FlowMatch(Scheduler):
    """What schedulers of flow models have in common."""

    @property
    def shift(self) -> float:
        """The shift of the noise levels."""
        return self.config["shift"]

    def set_shift(self, shift: float) -> None:
        """Sets the shift of the noise levels."""
        changes = {**self._changes, "shift": shift}
        type(self)(self.base, changes)  # checks it
        self._changes = changes


class FlowMatchEulerDiscreteScheduler(_FlowMatch):
    """Kiln's sampler `euler`, for flow models."""

    sampler = "euler"


class FlowMatchHeunDiscreteScheduler(_FlowMatch):
    """Kiln's sampler `heun`, for flow models."""

    sampler = "heun"
    order = 2


def _class(name: str, sampler: str, **others: Any) -> type[Scheduler]:
    about = f"Kiln's sampler `{sampler}`."
    return type(name, (Scheduler,), {"sampler": sampler, "__doc__": about, "__module__": __name__, **others})


DDIMScheduler = _class("DDIMScheduler", "ddim")
DDPMScheduler = _class("DDPMScheduler", "ddpm")
DEISMultistepScheduler = _class("DEISMultistepScheduler", "deis", _solver_type="logrho")
DPMSolverMultistepScheduler = _class("DPMSolverMultistepScheduler", "dpmpp_2m")
DPMSolverSDEScheduler = _class("DPMSolverSDEScheduler", "dpmpp_sde", order=2)
EulerAncestralDiscreteScheduler = _class("EulerAncestralDiscreteScheduler", "euler_a")
EulerDiscreteScheduler = _class("EulerDiscreteScheduler", "euler")
HeunDiscreteScheduler = _class("HeunDiscreteScheduler", "heun", order=2)
KDPM2AncestralDiscreteScheduler = _class("KDPM2AncestralDiscreteScheduler", "dpm2_a", order=2)
KDPM2DiscreteScheduler = _class("KDPM2DiscreteScheduler", "dpm2", order=2)
LCMScheduler = _class("LCMScheduler", "lcm")
LMSDiscreteScheduler = _class("LMSDiscreteScheduler", "lms")
PNDMScheduler = _class("PNDMScheduler", "pndm")
TCDScheduler = _class("TCDScheduler", "tcd")
UniPCMultistepScheduler = _class("UniPCMultistepScheduler", "unipc", _solver_type="bh2")

_ALL = (*(one for one in Scheduler.__subclasses__() if one is not _FlowMatch), *_FlowMatch.__subclasses__())
SCHEDULERS: dict[str, type[Scheduler]] = {scheduler.__name__: scheduler for scheduler in _ALL}
