"""The keywords of an engine and of its calls.

Made from the tables of options (crates/request/src/options/table.rs, crates/python/src/engine_options.rs):
KILN_UPDATE_DOCS=1 cargo test --release -p kiln-python
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from kiln.image import ImageLike, StrPath


class EngineOptions(TypedDict, total=False):
    """The keywords of `Engine`."""

    device: str | None
    """Device: auto, cpu, cuda or cuda:N; two with `parallel`, as in cuda:0,cuda:1."""

    parallel: str | None
    """Has two devices work on one image: cfg computes the two halves of a guided step on them."""

    dtype: str | None
    """The type of weights and activations: auto, f32, bf16 or f16."""

    weight_type: str | None
    """Keeps the weights of linear layers in another type than `dtype`: auto (as the file stores them, if it does in 8 bits or less), f32, f16, bf16, f8, q8_0, q4_k and others."""

    compute: str | None
    """How the large layers of the denoiser are computed: auto (native), native (in `dtype`), int8 (in 8-bit integers) or fp8 (in 8-bit floats, on GPUs of compute capability 8.9 and later)."""

    scales: StrPath | None
    """With `compute` int8: a file of `kiln calibrate` with the ranges of the model's layers and those that keep `dtype`."""

    threads: int | None
    """Number of CPU threads of this engine. Default: one for each core that the process may use. Images do not depend on it."""

    config: StrPath | None
    """For a model in one file: a folder with configurations and tokenizers."""

    prediction: str | None
    """The prediction type of the denoiser: epsilon, v or flow. Default: by the model's configuration, else by its tensors."""

    unet: StrPath | None
    """A denoiser (U-Net or transformer) that replaces the model's: a checkpoint file, or a component's folder."""

    vae: StrPath | None
    """An autoencoder (VAE) that replaces the model's: a checkpoint file, or a component's folder."""

    text_encoders: Sequence[StrPath] | None
    """Text encoders that replace the model's encoders of the same width: checkpoint files."""

    no_t5: bool | None
    """Runs a model that can do without T5, as Stable Diffusion 3, without it: less memory, other images."""

    taesd: StrPath | None
    """Decodes with TAESD, a small autoencoder that keeps less detail: a safetensors file, or a folder."""

    lora_dir: StrPath | None
    """Folder of the LoRA files that a prompt names."""

    embeddings_dir: StrPath | None
    """Folder of the embeddings (textual inversion) that a prompt names."""

    weight_cache: StrPath | None
    """Folder that keeps packed weights for the next start on the CPU, which then takes a small part of the time."""

    prompt_cache: int | None
    """Number of encoded prompts that are kept for the next images. Default: 32."""

    memory: str | None
    """The networks in memory: auto (the fastest mode that fits), full (all networks), medvram (one network at a time) or lowvram (only the layers that run next). It does not change images."""

    vram_budget: str | int | None
    """The most memory that Kiln may use, of the GPU, or of the CPU if it runs there: 6G, 512M, or a number of bytes."""

    vae_tiling: bool | None
    """Decodes in strips of rows, without seams."""

    vae_tile_size: int | None
    """Height of a strip in pixels of the image. Default: as much as fits."""

    cuda_malloc: bool | None
    """Caches freed GPU memory for the next allocation. Default: on."""

    cuda_stream: bool | None
    """Copies weights to the GPU while it computes. Default: on."""

    pin_shared_memory: bool | None
    """Keeps offloaded weights in pinned memory. Default: on."""

    offline: bool | None
    """Does not access the network; uses cached files only."""


class RequestOptions(TypedDict, total=False):
    """The fields of a request, besides `prompt` and `init`."""

    negative_prompt: str | None
    """The negative prompt. With SDXL, no negative prompt differs from an empty one."""

    steps: int | None
    """Number of sampling steps."""

    sampler: str | None
    """The sampler. The names of AUTOMATIC1111, ComfyUI and diffusers are accepted too."""

    scheduler: str | None
    """The spacing of the noise levels."""

    cfg_scale: float | None
    """Strength of classifier-free guidance. 1 turns it off and halves the time of a step."""

    cfg_schedule: Sequence[float] | str | None
    """Strengths of classifier-free guidance over the steps instead of `cfg_scale`, as 9,7,5,1: from the first to the last step, with those between on straight lines. A step of strength 1 has no guidance and takes half the time."""

    seed: int | None
    """Seed of the first image; it increases by 1 for each further one. A negative number stands for a random seed, which is printed."""

    width: int | None
    """Width in pixels, a multiple of 8."""

    height: int | None
    """Height in pixels, a multiple of 8."""

    loras: Sequence[str | Mapping[str, Any]] | None
    """LoRA files to add to the weights, besides those that the prompt names: FILE, FILE:0.8, or FILE:0.8:0.5 for text encoders and denoiser."""

    controls: Sequence[str | Mapping[str, Any]] | None
    """Control networks that guide the images by an image each: net=FILE,image=FILE, then weight=0.8, start=0, end=0.5, mode=balanced, prompt or control, guess=true, resize=stretch, crop or fill, preprocess=canny and others, type=depth and others for Union networks, passes=both, first or second of hires fix. Without image the input image is used."""

    ip_adapters: Sequence[str | Mapping[str, Any]] | None
    """Images as prompts (IP-Adapter): model=FILE,image=FILE, then weight=0.8, start=0, end=0.5, encoder=DIR for the image encoder, mask=FILE, blocks=style, layout or names as up.0.1:0.5+mid, embeds=FILE with features in place of the image."""

    references: Sequence[ImageLike] | None
    """Reference images, which FLUX.1 Kontext, FLUX.2 and Qwen-Image-Edit change as the prompt says, or combine. All FLUX.1 models take them. FLUX.1 Depth and Canny take one: the control image."""

    reference_size: Literal["model", "own"] | None
    """Size in which the denoiser sees reference images: model, by the model's rule, or own, the image's size rounded down to multiples of 16."""

    regions: Sequence[str | Mapping[str, Any]] | None
    """Places of the parts of the prompt that AND separates, one for each part in their order, with a semicolon between two: pixels=256x512+64+0 (width, height, left and top) or share=0.5x1+0+0, mask=FILE, bounds=true for the rectangle around the mask, strength=0.8, blend=TEXT with weight=0.5 for a text that is blended in, or whole. The predictions of the parts are averaged, as in ComfyUI."""

    batch_count: int | None
    """Number of batches."""

    batch_size: int | None
    """Number of images in a batch, which are generated at once."""

    sigmas: Sequence[float] | str | None
    """The noise levels themselves, from the highest to the lowest: 14.6,6.5,2.7,1,0.4,0. They also set the number of steps."""

    convention: Literal["diffusers", "a1111", "comfyui"] | None
    """The program whose rules apply where programs differ: ranges of schedules, first latents, timesteps."""

    sigma_range: Literal["table", "spacing"] | None
    """Range of the schedules karras, exponential, polyexponential and beta_sigmas: table, all trained noise levels, or spacing, those that diffusers' class visits."""

    sigma_min: float | None
    """Lowest noise level of the schedule."""

    sigma_max: float | None
    """Highest noise level of the schedule."""

    discard_penultimate_sigma: bool | None
    """Computes one more noise level and leaves out the next-to-last one."""

    initial_noise: Literal["sigma", "variance"] | None
    """Scale of the first latents: sigma, noise times the noise level, or variance, noise times sqrt(sigma^2 + 1)."""

    unipc_variant: Literal["bh1", "bh2"] | None
    """The function B(h) of UniPC."""

    eta: float | None
    """Fraction of the noise that ancestral and DDIM samplers replace in each step. At most 1 for samplers on timesteps."""

    s_churn: float | None
    """Noise that is added before steps, as a total over all steps, for euler, heun and dpm2 (s_churn of k-diffusion)."""

    s_tmin: float | None
    """Lowest noise level at which `s_churn` applies."""

    s_tmax: float | None
    """Highest noise level at which `s_churn` applies."""

    s_noise: float | None
    """Scale of the noise that samplers add in their steps (s_noise of k-diffusion)."""

    rho: float | None
    """Power of the schedules karras and polyexponential."""

    guidance_rescale: float | None
    """How far the standard deviation of the guided prediction is restored to that of the conditional one; 0.7 is usual (arXiv 2305.08891, section 3.4)."""

    guidance_start: float | None
    """Fraction of the steps before which there is no guidance (arXiv 2404.07724)."""

    guidance_end: float | None
    """Fraction of the steps after which there is no guidance. Steps without guidance take half the time."""

    apg_eta: float | None
    """Adaptive projected guidance (arXiv 2410.02416): the factor of that part of the guidance which is parallel to the conditional prediction. 0 is usual, 1 leaves it as it is."""

    apg_threshold: float | None
    """Adaptive projected guidance: the largest norm of the guidance, which is scaled down to it; 0 is no bound."""

    apg_momentum: float | None
    """Adaptive projected guidance: the factor of the guidance of all steps before, which is added; -0.75 to 0 is usual."""

    mimic_scale: float | None
    """Guidance strength whose value range dynamic thresholding restores."""

    dynamic_thresholding: float | None
    """Percentile of dynamic thresholding, as 1 or 0.995: strong guidance gets the value range of a weaker one."""

    slg_scale: float | None
    """Skip-layer guidance of Stable Diffusion 3.5: away from what the network predicts without some of its blocks. Half as much time again for a step that has it."""

    slg_layers: str | None
    """Skip-layer guidance: the blocks that are left out, by their numbers from 0 on."""

    slg_start: float | None
    """Skip-layer guidance: the fraction of the steps after which it begins."""

    slg_end: float | None
    """Skip-layer guidance: the fraction of the steps at which it ends."""

    cfg_zero_star: bool | None
    """CFG-Zero* (arXiv 2503.18886): scales the unconditional prediction to the conditional one, and leaves out the first step."""

    cfg_norm: float | None
    """Bound of the guided prediction's norm, as a multiple of the conditional one's; 0 is none (cfg_normalization of Z-Image)."""

    shift: float | None
    """Shift of a flow model's noise levels, the same for all sizes: the more, the more steps at high noise."""

    guidance: float | None
    """Guidance scale that a distilled model takes as an input, as FLUX.1 dev. It costs no time, unlike `cfg_scale`, which may be used with it and a negative prompt."""

    pag_scale: float | None
    """Strength of perturbed attention guidance (PAG, arXiv 2403.17377): away from what the network predicts where tokens of the prompted half attend to themselves alone. Half as much time again for a step; 3 is usual."""

    pag_adaptive_scale: float | None
    """Perturbed attention guidance: how much its strength falls with each timestep from 1000 on, to 0 at least."""

    pag_layers: str | None
    """Perturbed attention guidance: the layers, as begins of their names: mid, up_blocks.1, up_blocks.1.attentions.0, with commas between several."""

    freeu: str | None
    """FreeU (arXiv 2309.11497): factors b1,b2,s1,s2 of the up path's features in two stages, and of the low frequencies of the skip connections. 1.5,1.6,0.9,0.2 is usual for SD1.5, 1.4,1.6,0.9,0.2 for SD2, 1.3,1.4,0.9,0.2 for SDXL."""

    freeu_version: Literal["diffusers", "v1", "v2"] | None
    """FreeU: diffusers (constant factors in the first two up blocks), v1 (the same where the up path has four times and twice the channels of the first convolution) or v2 (there, with factors that follow the mean of the features)."""

    sag_scale: float | None
    """Strength of self-attention guidance (SAG, arXiv 2210.00939): away from what the network predicts where the parts of the image are blurred that it attends to. One more call of the network in each step; 0.75 is usual."""

    sag_sigma: float | None
    """Self-attention guidance: the standard deviation of the blur in latents."""

    sag_threshold: float | None
    """Self-attention guidance: tokens that get more attention than this are blurred; the mean is 1."""

    cache: str | None
    """DeepCache (arXiv 2312.00858): deepcache:3 runs the whole network in every third evaluation, and in the others only its outermost layers; deepcache:3:1 has more of them. Faster, with small differences."""

    block_cache: float | None
    """First-block cache of transformers. Each evaluation computes the first block. If the residual of that block differs from the stored one by less than this threshold (a relative mean absolute difference), the other blocks are skipped and their stored residual is added. A higher threshold is faster and changes the image more. For 10 steps or more."""

    block_cache_predict: bool | None
    """First-block cache: extrapolates the residual of skipped blocks linearly from the last two evaluations that computed them (TaylorSeer of the first order, arXiv 2503.06923)."""

    deep_shrink: float | None
    """Deep shrink (kohya-ss's high-resolution fix): by how much the maps of the deep part of the network are smaller in the first steps, for images larger than those that the model was trained with; 2 is usual."""

    deep_shrink_block: int | None
    """Deep shrink: the step on the way down after which maps are smaller; 0 is the first convolution, each layer and each downsampling is one more."""

    deep_shrink_start: float | None
    """Deep shrink: the part of the noise levels at which it begins."""

    deep_shrink_end: float | None
    """Deep shrink: the part of the noise levels at which it ends."""

    subseed: int | None
    """Seed of a second noise that is mixed into the first. A negative number stands for a random seed."""

    subseed_strength: float | None
    """Weight of the second noise, for variations of an image."""

    seed_resize_from: tuple[int, int] | str | None
    """Size of another image, as 512x512, whose noise is kept in the middle of this one."""

    noise_part: str | None
    """Draws the noise of all images from one generator with the seed, as ComfyUI does for a batch and diffusers with a single generator. 1/4 is the first image of four: a batch of four has all of them, and 2/4 makes the second one alone. Otherwise each image has a seed of its own."""

    clip_skip: int | None
    """Layer of the text encoder that is used, counted from the last, which is 1."""

    ensd: int | None
    """Offset of the seed for the noise after the first (eta noise seed delta of AUTOMATIC1111)."""

    rng: Literal["cpu", "cuda"] | None
    """The random number generator: PyTorch's on the CPU or on CUDA. Both run on every device."""

    emphasis: Literal["original", "no-norm", "ignore", "comfy", "compel", "none"] | None
    """The rule for weights such as (word:1.3): original (AUTOMATIC1111's, with the mean restored), no-norm, ignore, comfy, compel, or none, which reads brackets as text."""

    pad_conds: bool | None
    """Pads the shorter of prompt and negative prompt with empty chunks. AUTOMATIC1111 and ComfyUI do not."""

    comma_backtrack: int | None
    """A full chunk of 75 tokens ends at its last comma if that is at most this number of tokens back; 0 turns this off."""

    chunk_cut: Literal["comma", "word", "truncate"] | None
    """Where a text with more tokens than a chunk is split: comma (see `comma_backtrack`), word, as ComfyUI does, or truncate, which cuts off what does not fit into one chunk, as diffusers does."""

    max_length: int | None
    """Tokens of the text for a T5 text encoder: shorter texts are padded, and longer ones are cut off. For models with T5."""

    keep_comments: bool | None
    """Keeps what follows a # in a prompt. Without it, # begins a comment that ends with the line."""

    wildcards_dir: StrPath | None
    """A folder of lists: __name__ in a prompt becomes a line of name.txt, selected by the image's seed, as is one of {a|b|c}."""

    strength: float | None
    """Fraction of the steps that is run on the input, more than 0. Less keeps more of it."""

    rule: Literal["diffusers", "a1111", "comfy"] | None
    """The program whose rules apply to an input image (step counts, first noise, what a mask does) and to a refiner."""

    resize_mode: Literal["stretch", "crop", "fill"] | None
    """How the input gets the size of the results: stretch changes its shape, crop keeps the middle, fill adds bars with the colors of its edge."""

    init_noise: Literal["sample", "mean"] | None
    """The latents of the input: a random sample of what the encoder returns, or the mean."""

    noise_multiplier: float | None
    """Factor of the noise that is added to the input."""

    mask_blur: float | None
    """Blur of the mask: standard deviation in pixels of the input."""

    mask_content: Literal["original", "fill", "noise", "nothing"] | None
    """Content of the masked part before noise is added: original, fill (colors from around it), noise, or nothing (latents of 0)."""

    inpaint_area: Literal["whole", "masked"] | None
    """The part of the input that the network sees: whole, or masked, the mask's bounding box enlarged to the results' size."""

    inpaint_padding: int | None
    """Pixels around the mask's bounding box, with `inpaint_area` masked."""

    mask_weight: float | None
    """How much of the masked part of the input an inpainting model does not see: 1 hides all of it, 0 nothing."""

    soft_inpainting: bool | None
    """Blends input and result where the mask is gray, step by step and then pixel by pixel, as AUTOMATIC1111's extension of this name does."""

    soft_schedule_bias: float | None
    """Soft inpainting: when the input is kept; below 1 in the last steps, above 1 in the first."""

    soft_preservation: float | None
    """Soft inpainting: how strongly the input is kept where the mask is gray."""

    soft_contrast_boost: float | None
    """Soft inpainting: how much contrast a blend of input and result gets back."""

    soft_mask_influence: float | None
    """Soft inpainting: how much the mask decides what is pasted back, instead of the change alone."""

    soft_difference_threshold: float | None
    """Soft inpainting: the change of the latents above which the result is seen."""

    soft_difference_contrast: float | None
    """Soft inpainting: how sharp the border between input and result is."""

    paste_back: bool | None
    """Pastes the input back around the mask: pixels outside of it are the input's own."""

    mask: ImageLike | None
    """Part of the input that is regenerated: the white part of an image, or its opaque part if it has transparency."""

    mask_invert: bool | None
    """Regenerates the part outside of the mask instead."""

    extend: Mapping[str, int] | str | None
    """Extends the input by pixels, as top=128,left=64. The border is regenerated."""

    hires_scale: float | None
    """Makes images again in a second pass that is larger by this factor (hires fix). Sides are rounded down to multiples of 8."""

    hires_size: tuple[int, int] | str | None
    """Size of the second pass, as 1024x1536, instead of `hires_scale`. Of another shape, the middle is cut out."""

    hires_upscaler: StrPath | None
    """Upscaler of the first pass's images: their latents are interpolated, or their pixels are enlarged by a filter or by a file of `kiln upscale` and encoded."""

    hires_steps: int | None
    """Steps of the second pass."""

    hires_strength: float | None
    """How much of the image the second pass changes, more than 0. Below 0.5 interpolated latents stay blurred."""

    hires_cfg_scale: float | None
    """Strength of guidance in the second pass."""

    hires_sampler: str | None
    """The sampler of the second pass."""

    hires_scheduler: str | None
    """The spacing of the noise levels of the second pass."""

    hires_prompt: str | None
    """The prompt of the second pass."""

    hires_negative_prompt: str | None
    """The negative prompt of the second pass."""

    upscaler_dir: StrPath | None
    """The folder of upscalers that are named without a path."""

    refiner_switch: float | None
    """Fraction of the run after which the refiner takes over, more than 0 and less than 1."""

    refiner_switch_by: Literal["steps", "timesteps"] | None
    """Unit of `refiner_switch` with `rule` a1111: steps, or timesteps as AUTOMATIC1111 does from 1.9 on."""

    aesthetic_score: float | None
    """Aesthetic score that a refiner of SDXL takes with the prompt."""

    negative_aesthetic_score: float | None
    """Aesthetic score that a refiner of SDXL takes with the negative prompt."""

    refiner: StrPath | None
    """A second model that takes over the last steps: a refiner of SDXL, or another model with the same latents. With `rule` diffusers it begins a sampler of its own, with a1111 the sampler goes on."""

    original_size: tuple[int, int] | str | None
    """SDXL: width and height, as 1024x1024, that an image of the training had before it was made smaller and cut: less gives results as from small images."""

    crop: str | None
    """SDXL: the pixels that were cut off to the left and above, as 256,0; 0,0 gives results whose object is in the middle."""

    target_size: tuple[int, int] | str | None
    """SDXL: width and height that results have for the denoiser."""

    negative_original_size: tuple[int, int] | str | None
    """SDXL: the value of `original_size` for the negative prompt."""

    negative_crop: str | None
    """SDXL: the value of `crop` for the negative prompt."""

    negative_target_size: tuple[int, int] | str | None
    """SDXL: the value of `target_size` for the negative prompt."""
