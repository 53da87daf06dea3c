"""Samplers step by step over a fixed function, and literals of PyTorch's CPU random numbers.

Writes `schedulers.{json,safetensors}` and `rng.{json,safetensors}` into `tests/fixtures/stages/`.

The function stands in for the network. With x the scaled sample and t the timestep, all in f32:

    out = tanh(0.6 x + 0.3 roll(x, 1, last dimension) + 0.2 sin(t / 100))
"""

import torch

from common import KARRAS, SAMPLERS, STAGES, ZERO_SNR, make_sampler, sampler_config, save_json_rows, save_safetensors
from models import SCHEDULERS

SHAPE = (1, 4, 4, 4)
SEED = 5
# Heun with 20 steps is the longest case, and at most one draw is made a call.
DRAWS = 40


def denoise(sample, timestep):
    """The function that stands in for the network."""
    wave = torch.sin(timestep.to(torch.float32) / 100)
    return torch.tanh(0.6 * sample + 0.3 * torch.roll(sample, 1, dims=-1) + 0.2 * wave)


def variants():
    """(name, config, samplers, schedules, step counts) of every group of cases."""
    sd1, sd2v, sdxl = (SCHEDULERS[kind] for kind in ("sd1", "sd2v", "sdxl"))
    every = tuple(SAMPLERS)
    both = ("default", "karras")
    default = ("default",)
    zero_snr = {**sd2v, "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    cosine = {**sd1, "beta_schedule": "squaredcos_cap_v2"}
    return [
        ("sd1", sd1, every, both, (7, 20)),
        ("sd2v", sd2v, every, both, (7, 20)),
        ("sdxl", sdxl, every, default, (7, 20)),
        ("trailing", {**sd1, "timestep_spacing": "trailing"}, every, default, (7,)),
        ("linspace", {**sd1, "timestep_spacing": "linspace"}, every, default, (7,)),
        ("leading_no_offset", {**sdxl, "steps_offset": 0}, every, default, (7,)),
        ("linear", {**sd1, "beta_schedule": "linear", "beta_start": 0.0001, "beta_end": 0.02}, every, both, (7,)),
        # Not with Karras sigmas: their largest gives timestep 998 or 999 by one rounding error.
        ("cosine", {**cosine, "timestep_spacing": "leading"}, every, default, (7,)),
        ("cosine_clipped", {**cosine, "lambda_min_clipped": -5.1}, ("dpmpp_2m",), default, (7,)),
        ("alpha_one", {**sd1, "set_alpha_to_one": True}, ("ddim", "pndm"), default, (7,)),
        ("clip", {**sdxl, "clip_sample": True}, ("ddim", "ddpm"), default, (7,)),
        ("zero_snr", zero_snr, ZERO_SNR, default, (7, 20)),
        ("few", sdxl, every, both, (1, 2)),
    ]


def run_sampler(config, sampler, schedule, steps):
    """Timesteps, sigmas where the sampler has them, and the sample after each step."""
    generator = torch.Generator("cpu").manual_seed(SEED)
    scheduler = make_sampler(config, sampler, schedule)
    scheduler.set_timesteps(steps)
    if hasattr(scheduler, "set_begin_index"):
        # Without this, diffusers looks the first timestep up, and starts one step late where rounding doubled it.
        scheduler.set_begin_index(0)
    sample = torch.randn(SHAPE, generator=generator) * scheduler.init_noise_sigma
    extra = {"generator": generator} if sampler in ("euler_a", "ddpm") else {}
    latents = []
    for timestep in scheduler.timesteps:
        output = denoise(scheduler.scale_model_input(sample, timestep), timestep)
        sample = scheduler.step(output, timestep, sample, **extra).prev_sample
        latents.append(sample)
    result = {
        "timesteps": scheduler.timesteps.to(torch.float32),
        "init_noise_sigma": torch.as_tensor(scheduler.init_noise_sigma, dtype=torch.float32).reshape(1),
        "latents": torch.stack(latents).to(torch.float32),
    }
    if sampler not in ("ddim", "ddpm", "pndm"):
        result["sigmas"] = scheduler.sigmas.to(torch.float32)
    return result


def write_schedulers():
    """Every sampler over every config where the pair makes sense."""
    rows = []
    generator = torch.Generator("cpu").manual_seed(SEED)
    draws = [torch.randn(SHAPE, generator=generator) for _ in range(DRAWS + 1)]
    tensors = {"noise.init": draws[0], "noise.draws": torch.stack(draws[1:])}
    for source, config, samplers, schedules, counts in variants():
        for sampler in samplers:
            for schedule in schedules:
                if schedule == "karras" and sampler not in KARRAS:
                    continue
                for steps in counts:
                    name = f"{sampler}.{schedule}.{source}.{steps}"
                    result = run_sampler(config, sampler, schedule, steps)
                    if not torch.isfinite(result["latents"]).all():
                        raise ValueError(f"{name} is not finite")
                    tensors |= {f"{name}.{key}": value for key, value in result.items()}
                    rows.append(
                        {
                            "name": name,
                            "sampler": sampler,
                            "schedule": schedule,
                            "config": sampler_config(config, schedule),
                            "steps": steps,
                        }
                    )
    save_json_rows(STAGES / "schedulers.json", rows)
    save_safetensors(STAGES / "schedulers.safetensors", tensors)


# --------------------------------------------------------------------------------------------------
# Random numbers

SEEDS = [0, 42, 2**32 + 5, 123456789012]

# Consecutive draws on one generator. Below 16 values PyTorch takes another way, which keeps a spare number.
DRAW_LISTS = {
    **{f"count{n}": [[n]] for n in (1, 2, 3, 7, 8, 15, 16, 17, 20, 31, 32, 33, 40)},
    "square": [[4, 8, 8]],
    "odd": [[4, 9, 13]],
    "picture": [[3, 5, 7]],
    "mixed": [[5], [20], [3], [16], [1], [31], [1], [2, 4], [4, 5, 7], [15], [4, 4, 4], [3]],
}


def write_rng():
    """Normals in f32, and the low 24 bits of the generator's integers across its refills."""
    rows, tensors = [], {}
    for seed in SEEDS:
        generator = torch.Generator("cpu").manual_seed(seed)
        tensors[f"seed{seed}.bits24"] = torch.randint(0, 2**24, (1300,), generator=generator, dtype=torch.int32)
        for label, shapes in DRAW_LISTS.items():
            name = f"seed{seed}.{label}"
            generator = torch.Generator("cpu").manual_seed(seed)
            for i, shape in enumerate(shapes):
                tensors[f"{name}.{i}"] = torch.randn(shape, generator=generator)
            rows.append({"name": name, "seed": seed, "draws": shapes})
    save_json_rows(STAGES / "rng.json", rows)
    save_safetensors(STAGES / "rng.safetensors", tensors)


def main():
    """Write schedulers and random numbers."""
    write_schedulers()
    write_rng()
