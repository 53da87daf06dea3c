//! The table of options, from which the fields of [`Request`] are made too.

use std::path::PathBuf;

use kiln_models::limits::MAX_SIDE;
use kiln_prompt::{ChunkCut, Emphasis};
use kiln_scheduler::{
    Convention, InitialNoise, NoisePart, SamplerChoice, SamplerOptions, SigmaRange, SigmaSchedule, UniPcScale,
};
use serde::{Deserialize, Serialize};

use super::declare::{EMPTY, options};
use super::feature::ModelFeature::{Flow, Guidance, References, Sizes, SkippedBlocks, Transformer, Unet};
use super::input_table::input_options;
use super::kinds::{
    BACKTRACK, CHUNK_CUT, CHURN, CONVENTION, EMPHASIS, ETA, FIRST_LATENTS, IMAGES, LENGTH, NOISE_LEVEL, PART, RHO,
    S_NOISE, SAMPLER, SCHEDULE, SCORE, SIDE, SIGMA_RANGE, SOFTNESS, STEPS, STRENGTH, UNIPC,
};
use super::resolved::{OptionSet, Resolved};
use super::row::InfotextKey::{Always, Changed, Text as Body, Within};
use super::row::OptionGroup::{Image, Input, Internal, Prompt, Sampling};
use super::row::OptionKind::{
    Borders, Choice, Controls, File, Files, Flag, Folder, Form, IpAdapters, Loras, Model, Number, Numbers, Offset,
    Regions, Seed, Size, Switch, Text, Upscaler, Whole,
};
use super::row::{OptionGroup, OptionRow};
use crate::block_set::BlockSet;
use crate::control::ControlUse;
use crate::hires::HiresUpscaler;
use crate::image_prompt::IpAdapterUse;
use crate::init::InitLatents;
use crate::input::{Extend, InpaintArea, MaskContent, ResizeChoice, Rule, SwitchBy};
use crate::lora::LoraUse;
use crate::network::{CacheUse, FreeuFactors, FreeuVersion, PagLayers};
use crate::reference::ReferenceSize;
use crate::regions::RegionUse;
use crate::request::Rng;
use crate::settings::labels;
use crate::size_conditions::Crop;

input_options! {
    by_hand in Image {
        /// The prompt.
        prompt: String { kind: Text, infotext: Body, group: Prompt }
        /// The negative prompt. With SDXL, no negative prompt differs from an empty one.
        negative_prompt: Option<String> { kind: Text, infotext: Body, short_names: &["negative"], group: Prompt }
        /// Number of sampling steps.
        steps: Option<usize> { kind: STEPS, default: "the model's, usually 20", infotext: Always("Steps") }
        /// The sampler. The names of AUTOMATIC1111, ComfyUI and diffusers are accepted too.
        sampler: Option<SamplerChoice> { kind: SAMPLER, default: "the model's", infotext: Always(labels::SAMPLER), group: Sampling }
        /// The spacing of the noise levels.
        scheduler: SigmaSchedule {
            kind: SCHEDULE, default: "default (the model's)", infotext: Always(labels::SCHEDULE_TYPE), group: Sampling,
        }
        /// Strength of classifier-free guidance. 1 turns it off and halves the time of a step.
        cfg_scale: Option<f64> {
            kind: STRENGTH, usual: "3 to 12", default: "the model's; 7, for SDXL 5",
            infotext: Always("CFG scale"), short_names: &["cfg"],
        }
        /// Strengths of classifier-free guidance over the steps instead of `cfg_scale`, as 9,7,5,1: from the first to the last
        /// step, with those between on straight lines. A step of strength 1 has no guidance and takes half the time.
        cfg_schedule: Option<Vec<f64>> { kind: Numbers, infotext: Changed("CFG schedule") }
        /// Seed of the first image; it increases by 1 for each further one. A negative number stands for a random seed,
        /// which is printed.
        seed: Option<u64> { kind: Seed, default: "random", infotext: Always("Seed") }
        /// Width in pixels, a multiple of 8.
        width: Option<usize> { kind: SIDE, default: "the model's", infotext: Always(labels::SIZE) }
        /// Height in pixels, a multiple of 8.
        height: Option<usize> { kind: SIDE, default: "the model's", infotext: Within(labels::SIZE) }
        /// LoRA files to add to the weights, besides those that the prompt names: FILE, FILE:0.8, or FILE:0.8:0.5 for text
        /// encoders and denoiser.
        loras: Vec<LoraUse> { kind: Loras, short_names: &["lora"] }
        /// Control networks that guide the images by an image each: net=FILE,image=FILE, then weight=0.8, start=0, end=0.5,
        /// mode=balanced, prompt or control, guess=true, resize=stretch, crop or fill, preprocess=canny and others, type=depth
        /// and others for Union networks, passes=both, first or second of hires fix. Without image the input image is used.
        controls: Vec<ControlUse> { kind: Controls, short_names: &["control"] }
        /// Images as prompts (IP-Adapter): model=FILE,image=FILE, then weight=0.8, start=0, end=0.5, encoder=DIR for the image
        /// encoder, mask=FILE, blocks=style, layout or names as up.0.1:0.5+mid, embeds=FILE with features in place of the image.
        ip_adapters: Vec<IpAdapterUse> { kind: IpAdapters, short_names: &["ip_adapter"], needs: Some(Unet) }
        /// Reference images, which FLUX.1 Kontext, FLUX.2 and Qwen-Image-Edit change as the prompt says, or combine. All FLUX.1
        /// models take them. FLUX.1 Depth and Canny take one: the control image.
        references: Vec<PathBuf> {
            kind: Files, aliases: &["ref_image"], short_names: &["reference"], needs: Some(References),
        }
        /// Size in which the denoiser sees reference images: model, by the model's rule, or own, the image's size rounded down to
        /// multiples of 16.
        reference_size: Option<ReferenceSize> {
            kind: Choice(|| ReferenceSize::IDS.to_vec()), default: "model", infotext: Changed("Reference size"),
            needs: Some(References),
        }
        /// Places of the parts of the prompt that AND separates, one for each part in their order, with a semicolon between two:
        /// pixels=256x512+64+0 (width, height, left and top) or share=0.5x1+0+0, mask=FILE, bounds=true for the rectangle around the
        /// mask, strength=0.8, blend=TEXT with weight=0.5 for a text that is blended in, or whole. The predictions of the parts are
        /// averaged, as in ComfyUI.
        regions: Vec<RegionUse> { kind: Regions, short_names: &["region"], group: Prompt }
        /// Number of batches.
        batch_count: Option<usize> { kind: IMAGES, default: "1" }
        /// Number of images in a batch, which are generated at once.
        batch_size: Option<usize> { kind: IMAGES, default: "1" }
    }
    sampling in Sampling {
        /// The noise levels themselves, from the highest to the lowest: 14.6,6.5,2.7,1,0.4,0. They also set the number of
        /// steps.
        sigmas: Option<Vec<f64>> { kind: Numbers, infotext: Changed("Sigmas") }
        /// The program whose rules apply where programs differ: ranges of schedules, first latents, timesteps.
        convention: Convention { kind: CONVENTION, default: "diffusers", infotext: Changed(labels::CONVENTION) }
        /// Range of the schedules karras, exponential, polyexponential and beta_sigmas: table, all trained noise levels, or
        /// spacing, those that diffusers' class visits.
        sigma_range: Option<SigmaRange> {
            kind: SIGMA_RANGE, default: "by the schedule's name, else by the convention", infotext: Changed("Sigma range"),
        }
        /// Lowest noise level of the schedule.
        sigma_min: Option<f64> { kind: NOISE_LEVEL, default: "that of its range", infotext: Changed("Schedule min sigma") }
        /// Highest noise level of the schedule.
        sigma_max: Option<f64> { kind: NOISE_LEVEL, default: "that of its range", infotext: Changed("Schedule max sigma") }
        /// Computes one more noise level and leaves out the next-to-last one.
        discard_penultimate_sigma: Option<bool> {
            kind: Switch, default: "by the convention", infotext: Changed("Discard penultimate sigma"),
        }
        /// Scale of the first latents: sigma, noise times the noise level, or variance, noise times sqrt(sigma^2 + 1).
        initial_noise: Option<InitialNoise> {
            kind: FIRST_LATENTS, default: "by the convention", infotext: Changed("SGM noise multiplier"),
        }
        /// The function B(h) of UniPC.
        unipc_variant: Option<UniPcScale> {
            kind: UNIPC, default: "the model's, else bh2; with a1111 and comfyui bh1", infotext: Changed("UniPC variant"),
        }
        /// Fraction of the noise that ancestral and DDIM samplers replace in each step. At most 1 for samplers on timesteps.
        eta: Option<f64> { kind: ETA, default: "the sampler's", infotext: Changed("Eta"), infotext_aliases: &["Eta DDIM"] }
        /// Noise that is added before steps, as a total over all steps, for euler, heun and dpm2 (s_churn of k-diffusion).
        s_churn: Option<f64> { kind: CHURN, default: "0", infotext: Changed("Sigma churn") }
        /// Lowest noise level at which `s_churn` applies.
        s_tmin: Option<f64> { kind: CHURN, default: "0", infotext: Changed("Sigma tmin") }
        /// Highest noise level at which `s_churn` applies.
        s_tmax: Option<f64> { kind: CHURN, default: "no limit", infotext: Changed("Sigma tmax") }
        /// Scale of the noise that samplers add in their steps (s_noise of k-diffusion).
        s_noise: Option<f64> { kind: S_NOISE, default: "1", infotext: Changed("Sigma noise") }
        /// Power of the schedules karras and polyexponential.
        rho: Option<f64> { kind: RHO, default: "7 for karras, 1 for polyexponential", infotext: Changed("Schedule rho") }
    }
    /// Guidance beside its strength. The default changes nothing.
    group GuidanceOptions in Sampling {
        /// How far the standard deviation of the guided prediction is restored to that of the conditional one; 0.7 is usual
        /// (arXiv 2305.08891, section 3.4).
        guidance_rescale as rescale: f64 = 0.0; Option<f64> { kind: PART, default: "0", infotext: Changed("CFG Rescale") }
        /// Fraction of the steps before which there is no guidance (arXiv 2404.07724).
        guidance_start as start: f64 = 0.0; Option<f64> {
            kind: PART, default: "0", infotext: Changed("Guidance start"), infotext_aliases: &["Skip Early CFG"],
        }
        /// Fraction of the steps after which there is no guidance. Steps without guidance take half the time.
        guidance_end as end: f64 = 1.0; Option<f64> { kind: PART, default: "1", infotext: Changed("Guidance end") }
        /// Adaptive projected guidance (arXiv 2410.02416): the factor of that part of the guidance which is parallel to the
        /// conditional prediction. 0 is usual, 1 leaves it as it is.
        apg_eta as apg_eta: Option<f64> = None; Option<f64> {
            kind: Number { min: -10.0, max: 10.0 }, usual: "0 to 1", default: "off", infotext: Changed("APG eta"),
        }
        /// Adaptive projected guidance: the largest norm of the guidance, which is scaled down to it; 0 is no bound.
        apg_threshold as apg_threshold: f64 = 15.0; Option<f64> {
            kind: Number { min: 0.0, max: 10000.0 }, usual: "2.5 to 15", default: "15", infotext: Changed("APG threshold"),
        }
        /// Adaptive projected guidance: the factor of the guidance of all steps before, which is added; -0.75 to 0 is usual.
        apg_momentum as apg_momentum: f64 = 0.0; Option<f64> {
            kind: Number { min: -1.0, max: 1.0 }, usual: "-0.75 to 0", default: "0", infotext: Changed("APG momentum"),
        }
        /// Guidance strength whose value range dynamic thresholding restores.
        mimic_scale as mimic_scale: Option<f64> = None; Option<f64> {
            kind: STRENGTH, usual: "3 to 12", default: "7", infotext: Changed(labels::MIMIC_SCALE),
        }
        /// Percentile of dynamic thresholding, as 1 or 0.995: strong guidance gets the value range of a weaker one.
        dynamic_thresholding as percentile: Option<f64> = None; Option<f64> {
            kind: PART, default: "off", infotext: Changed(labels::PERCENTILE),
        }
        /// Skip-layer guidance of Stable Diffusion 3.5: away from what the network predicts without some of its blocks. Half as much
        /// time again for a step that has it.
        slg_scale as slg_scale: f64 = 0.0; Option<f64> {
            kind: Number { min: 0.0, max: 100.0 }, usual: "2.5 to 3", default: "0", infotext: Changed("Skip layer guidance scale"),
            needs: Some(SkippedBlocks),
        }
        /// Skip-layer guidance: the blocks that are left out, by their numbers from 0 on.
        slg_layers as slg_layers: BlockSet = BlockSet::default(); Option<BlockSet> {
            kind: Form("7,8,9"), default: "7,8,9", infotext: Changed("Skip layer guidance layers"), aliases: &["skip_layers"],
            needs: Some(SkippedBlocks),
        }
        /// Skip-layer guidance: the fraction of the steps after which it begins.
        slg_start as slg_start: f64 = 0.01; Option<f64> {
            kind: PART, default: "0.01", infotext: Changed("Skip layer guidance start"), aliases: &["skip_layer_start"],
            needs: Some(SkippedBlocks),
        }
        /// Skip-layer guidance: the fraction of the steps at which it ends.
        slg_end as slg_end: f64 = 0.2; Option<f64> {
            kind: PART, default: "0.2", infotext: Changed("Skip layer guidance end"), aliases: &["skip_layer_end"],
            needs: Some(SkippedBlocks),
        }
        /// CFG-Zero* (arXiv 2503.18886): scales the unconditional prediction to the conditional one, and leaves out the first step.
        cfg_zero_star as zero_star: bool = false; bool { kind: Flag, infotext: Changed("CFG Zero Star"), needs: Some(Flow) }
        /// Bound of the guided prediction's norm, as a multiple of the conditional one's; 0 is none (cfg_normalization of
        /// Z-Image).
        cfg_norm as norm: f64 = 0.0; Option<f64> {
            kind: Number { min: 0.0, max: 100.0 }, usual: "1", default: "0", infotext: Changed("CFG norm"), needs: Some(Flow),
        }
    }
    by_hand in Sampling {}
    /// Options of flow models.
    group FlowOptions in Sampling {
        /// Shift of a flow model's noise levels, the same for all sizes: the more, the more steps at high noise.
        shift as shift: Option<f64> = None; Option<f64> {
            kind: Number { min: 0.01, max: 100.0 }, usual: "1 to 6", default: "the model's", infotext: Changed("Shift"),
            aliases: &["flow_shift"], needs: Some(Flow),
        }
        /// Guidance scale that a distilled model takes as an input, as FLUX.1 dev. It costs no time, unlike `cfg_scale`, which may
        /// be used with it and a negative prompt.
        guidance as guidance: Option<f64> = None; Option<f64> {
            kind: STRENGTH, usual: "1.5 to 5, for FLUX.1 Fill 30", default: "the model's, usually 3.5",
            infotext: Changed("Distilled CFG Scale"), needs: Some(Guidance),
        }
    }
    by_hand in Sampling {}
    /// Changes of the network. The default changes nothing.
    group NetworkOptions in Sampling {
        /// Strength of perturbed attention guidance (PAG, arXiv 2403.17377): away from what the network predicts where tokens of
        /// the prompted half attend to themselves alone. Half as much time again for a step; 3 is usual.
        pag_scale as pag_scale: f64 = 0.0; Option<f64> {
            kind: STRENGTH, usual: "1 to 5", default: "0", infotext: Changed("PAG scale"), infotext_aliases: &["PAG Scale"],
            needs: Some(Unet),
        }
        /// Perturbed attention guidance: how much its strength falls with each timestep from 1000 on, to 0 at least.
        pag_adaptive_scale as pag_adaptive_scale: f64 = 0.0; Option<f64> {
            kind: STRENGTH, usual: "0.001 to 0.01", default: "0", infotext: Changed("PAG adaptive scale"),
            needs: Some(Unet),
        }
        /// Perturbed attention guidance: the layers, as begins of their names: mid, up_blocks.1, up_blocks.1.attentions.0, with
        /// commas between several.
        pag_layers as pag_layers: PagLayers = PagLayers::default(); Option<PagLayers> {
            kind: Form("mid,up_blocks.1"), default: "mid", infotext: Changed("PAG layers"),
            needs: Some(Unet),
        }
        /// FreeU (arXiv 2309.11497): factors b1,b2,s1,s2 of the up path's features in two stages, and of the low frequencies
        /// of the skip connections. 1.5,1.6,0.9,0.2 is usual for SD1.5, 1.4,1.6,0.9,0.2 for SD2, 1.3,1.4,0.9,0.2 for SDXL.
        freeu as freeu: Option<FreeuFactors> = None; Option<FreeuFactors> {
            kind: Form("1.5,1.6,0.9,0.2"), default: "off", infotext: Changed("FreeU"),
            needs: Some(Unet),
        }
        /// FreeU: diffusers (constant factors in the first two up blocks), v1 (the same where the up path has four times and
        /// twice the channels of the first convolution) or v2 (there, with factors that follow the mean of the features).
        freeu_version as freeu_version: FreeuVersion = FreeuVersion::Diffusers; Option<FreeuVersion> {
            kind: Choice(|| FreeuVersion::IDS.to_vec()), default: "diffusers", infotext: Changed("freeu_version"),
            needs: Some(Unet),
        }
        /// Strength of self-attention guidance (SAG, arXiv 2210.00939): away from what the network predicts where the parts of
        /// the image are blurred that it attends to. One more call of the network in each step; 0.75 is usual.
        sag_scale as sag_scale: f64 = 0.0; Option<f64> {
            kind: Number { min: 0.0, max: 100.0 }, usual: "0.5 to 1", default: "0", infotext: Changed("SAG scale"),
            infotext_aliases: &["SAG Scale"],
            needs: Some(Unet),
        }
        /// Self-attention guidance: the standard deviation of the blur in latents.
        sag_sigma as sag_sigma: f64 = 1.0; Option<f64> {
            kind: Number { min: 0.1, max: 10.0 }, usual: "1 to 2", default: "1", infotext: Changed("SAG blur sigma"),
            needs: Some(Unet),
        }
        /// Self-attention guidance: tokens that get more attention than this are blurred; the mean is 1.
        sag_threshold as sag_threshold: f64 = 1.0; Option<f64> {
            kind: Number { min: 0.0, max: 100.0 }, usual: "1", default: "1", infotext: Changed("SAG threshold"),
            needs: Some(Unet),
        }
        /// DeepCache (arXiv 2312.00858): deepcache:3 runs the whole network in every third evaluation, and in the others only its
        /// outermost layers; deepcache:3:1 has more of them. Faster, with small differences.
        cache as cache: Option<CacheUse> = None; Option<CacheUse> {
            kind: Form("deepcache:3"), default: "off", infotext: Changed("Cache"),
            needs: Some(Unet),
        }
        /// First-block cache of transformers. Each evaluation computes the first block. If the residual of that block differs from
        /// the stored one by less than this threshold (a relative mean absolute difference), the other blocks are skipped and their
        /// stored residual is added. A higher threshold is faster and changes the image more. For 10 steps or more.
        block_cache as block_cache: Option<f64> = None; Option<f64> {
            kind: Number { min: 0.0, max: 10.0 }, usual: "0.05 to 0.2", default: "off", infotext: Changed("Block cache"),
            needs: Some(Transformer),
        }
        /// First-block cache: extrapolates the residual of skipped blocks linearly from the last two evaluations that computed them
        /// (TaylorSeer of the first order, arXiv 2503.06923).
        block_cache_predict as block_cache_predict: bool = false; bool {
            kind: Flag, infotext: Changed("Block cache predict"), needs: Some(Transformer),
        }
        /// Deep shrink (kohya-ss's high-resolution fix): by how much the maps of the deep part of the network are smaller in the
        /// first steps, for images larger than those that the model was trained with; 2 is usual.
        deep_shrink as deep_shrink: Option<f64> = None; Option<f64> {
            kind: Number { min: 1.0, max: 8.0 }, usual: "1.5 to 2", default: "off",
            infotext: Changed("kohya_hrfix_downscale_factor"),
            needs: Some(Unet),
        }
        /// Deep shrink: the step on the way down after which maps are smaller; 0 is the first convolution, each layer and each
        /// downsampling is one more.
        deep_shrink_block as deep_shrink_block: usize = 3; Option<usize> {
            kind: Whole { min: 0, max: 32 }, default: "3", infotext: Changed("kohya_hrfix_block_number"),
            needs: Some(Unet),
        }
        /// Deep shrink: the part of the noise levels at which it begins.
        deep_shrink_start as deep_shrink_start: f64 = 0.0; Option<f64> {
            kind: PART, default: "0", infotext: Changed("kohya_hrfix_start_percent"),
            needs: Some(Unet),
        }
        /// Deep shrink: the part of the noise levels at which it ends.
        deep_shrink_end as deep_shrink_end: f64 = 0.35; Option<f64> {
            kind: PART, default: "0.35", infotext: Changed("kohya_hrfix_end_percent"),
            needs: Some(Unet),
        }
    }
    by_hand in Sampling {
        /// Seed of a second noise that is mixed into the first. A negative number stands for a random seed.
        subseed: Option<u64> { kind: Seed, default: "random", infotext: Changed("Variation seed"), aliases: &["variation_seed"] }
        /// Weight of the second noise, for variations of an image.
        subseed_strength: Option<f64> {
            kind: PART, default: "0", infotext: Changed("Variation seed strength"), aliases: &["variation_strength"],
        }
        /// Size of another image, as 512x512, whose noise is kept in the middle of this one.
        seed_resize_from: Option<(usize, usize)> { kind: Size, infotext: Changed("Seed resize from") }
        /// Draws the noise of all images from one generator with the seed, as ComfyUI does for a batch and diffusers with a single
        /// generator. 1/4 is the first image of four: a batch of four has all of them, and 2/4 makes the second one alone. Otherwise
        /// each image has a seed of its own.
        noise_part: Option<NoisePart> { kind: Form("1/4"), default: "off", infotext: Changed("Noise part"), aliases: &["batch_part"] }
        /// Layer of the text encoder that is used, counted from the last, which is 1.
        clip_skip: Option<usize> {
            kind: Whole { min: 1, max: usize::MAX }, default: "1, for SDXL 2", infotext: Changed("Clip skip"), group: Prompt,
        }
        /// Offset of the seed for the noise after the first (eta noise seed delta of AUTOMATIC1111).
        ensd: Option<i64> { kind: Offset, default: "0", infotext: Changed("ENSD"), aliases: &["eta_noise_seed_delta"] }
        /// The random number generator: PyTorch's on the CPU or on CUDA. Both run on every device.
        rng: Rng { kind: Choice(|| vec!["cpu", "cuda"]), default: "cpu", infotext: Always(labels::RNG) }
        /// The rule for weights such as (word:1.3): original (AUTOMATIC1111's, with the mean restored), no-norm, ignore,
        /// comfy, compel, or none, which reads brackets as text.
        emphasis: Emphasis { kind: EMPHASIS, default: "original", infotext: Changed("Emphasis"), group: Prompt }
        /// Pads the shorter of prompt and negative prompt with empty chunks. AUTOMATIC1111 and ComfyUI do not.
        pad_conds: Option<bool> { kind: Switch, default: "on", infotext: Changed("Pad conds"), group: Prompt }
        /// A full chunk of 75 tokens ends at its last comma if that is at most this number of tokens back; 0 turns this off.
        comma_backtrack: Option<usize> { kind: BACKTRACK, default: "20", group: Prompt }
        /// Where a text with more tokens than a chunk is split: comma (see `comma_backtrack`), word, as ComfyUI does, or truncate,
        /// which cuts off what does not fit into one chunk, as diffusers does.
        chunk_cut: ChunkCut { kind: CHUNK_CUT, default: "comma", group: Prompt }
        /// Tokens of the text for a T5 text encoder: shorter texts are padded, and longer ones are cut off. For models with T5.
        max_length: Option<usize> {
            kind: LENGTH, default: "the model's: 256 for Stable Diffusion 3 and FLUX.1 schnell, 512 for all others",
            infotext: Changed("Max length"), group: Prompt,
        }
        /// Keeps what follows a # in a prompt. Without it, # begins a comment that ends with the line.
        keep_comments: bool { kind: Flag, group: Prompt }
        /// A folder of lists: __name__ in a prompt becomes a line of name.txt, selected by the image's seed, as is one of
        /// {a|b|c}.
        wildcards_dir: Option<PathBuf> { kind: Folder, group: Prompt }
        /// Reads braces and __name__ in the prompt as text: its choices were made before.
        literal_prompt: bool { kind: Flag, group: Internal }
        /// Reads braces and __name__ in the negative prompt as text.
        literal_negative_prompt: bool { kind: Flag, group: Internal }
    }
}
