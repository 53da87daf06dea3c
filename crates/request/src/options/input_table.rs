//! The rows of input images, the second pass, the refiner and SDXL's sizes: the second part of the table of options.

/// Declares the options before these rows, and these rows.
macro_rules! input_options {
    ($($before:tt)*) => {
        options! {
            $($before)*
    /// Options of an input image. The defaults are for an image without a mask.
    group ImageOptions in Input {
        /// Fraction of the steps that is run on the input, more than 0. Less keeps more of it.
        strength as strength: f64 = 0.75; Option<f64> {
            kind: PART, default: "0.75", infotext: Changed(labels::DENOISING_STRENGTH), aliases: &["denoising_strength"],
        }
        /// The program whose rules apply to an input image (step counts, first noise, what a mask does) and to a refiner.
        rule as rule: Rule = Rule::Diffusers; Option<Rule> {
            kind: Choice(|| Rule::IDS.to_vec()), default: "diffusers; with `hires_scale` a1111", infotext: Changed("Image rule"), group: Image,
        }
        /// How the input gets the size of the results: stretch changes its shape, crop keeps the middle, fill adds bars with the
        /// colors of its edge.
        resize_mode as resize_mode: ResizeChoice = ResizeChoice::Stretch; Option<ResizeChoice> {
            kind: Choice(|| ResizeChoice::IDS.to_vec()), default: "stretch", infotext: Changed("Resize mode"),
        }
        /// The latents of the input: a random sample of what the encoder returns, or the mean.
        init_noise as init_noise: Option<InitLatents> = None; Option<InitLatents> {
            kind: Choice(|| InitLatents::IDS.to_vec()), default: "sample; with `rule` a1111 or comfy mean",
            infotext: Changed("Init noise"),
        }
        /// Factor of the noise that is added to the input.
        noise_multiplier as noise_multiplier: f64 = 1.0; Option<f64> {
            kind: Number { min: 0.0, max: 1.5 }, default: "1", infotext: Changed("Noise multiplier"),
        }
        /// Blur of the mask: standard deviation in pixels of the input.
        mask_blur as mask_blur: Option<f64> = None; Option<f64> {
            kind: Number { min: 0.0, max: 256.0 }, default: "0; with `rule` a1111 4", infotext: Changed("Mask blur"),
        }
        /// Content of the masked part before noise is added: original, fill (colors from around it), noise, or nothing
        /// (latents of 0).
        mask_content as mask_content: MaskContent = MaskContent::Original; Option<MaskContent> {
            kind: Choice(|| MaskContent::IDS.to_vec()), default: "original", infotext: Changed("Masked content"),
        }
        /// The part of the input that the network sees: whole, or masked, the mask's bounding box enlarged to the results' size.
        inpaint_area as inpaint_area: InpaintArea = InpaintArea::Whole; Option<InpaintArea> {
            kind: Choice(|| InpaintArea::IDS.to_vec()), default: "whole", infotext: Changed("Inpaint area"),
        }
        /// Pixels around the mask's bounding box, with `inpaint_area` masked.
        inpaint_padding as inpaint_padding: usize = 32; Option<usize> {
            kind: Whole { min: 0, max: MAX_SIDE }, default: "32", infotext: Changed("Masked area padding"),
        }
        /// How much of the masked part of the input an inpainting model does not see: 1 hides all of it, 0 nothing.
        mask_weight as mask_weight: f64 = 1.0; Option<f64> {
            kind: PART, default: "1", infotext: Changed("Conditional mask weight"), aliases: &["inpainting_mask_weight"],
        }
        /// Blends input and result where the mask is gray, step by step and then pixel by pixel, as AUTOMATIC1111's extension of
        /// this name does.
        soft_inpainting as soft_inpainting: bool = false; bool { kind: Flag, infotext: Changed("Soft inpainting enabled") }
        /// Soft inpainting: when the input is kept; below 1 in the last steps, above 1 in the first.
        soft_schedule_bias as soft_schedule_bias: f64 = 1.0; Option<f64> {
            kind: SOFTNESS, default: "1", infotext: Changed("Soft inpainting schedule bias"),
        }
        /// Soft inpainting: how strongly the input is kept where the mask is gray.
        soft_preservation as soft_preservation: f64 = 0.5; Option<f64> {
            kind: SOFTNESS, default: "0.5", infotext: Changed("Soft inpainting preservation strength"),
            aliases: &["soft_preservation_strength"],
        }
        /// Soft inpainting: how much contrast a blend of input and result gets back.
        soft_contrast_boost as soft_contrast_boost: f64 = 4.0; Option<f64> {
            kind: Number { min: 1.0, max: 32.0 }, default: "4", infotext: Changed("Soft inpainting transition contrast boost"),
            aliases: &["soft_transition_contrast_boost"],
        }
        /// Soft inpainting: how much the mask decides what is pasted back, instead of the change alone.
        soft_mask_influence as soft_mask_influence: f64 = 0.0; Option<f64> {
            kind: PART, default: "0", infotext: Changed("Soft inpainting mask influence"),
        }
        /// Soft inpainting: the change of the latents above which the result is seen.
        soft_difference_threshold as soft_difference_threshold: f64 = 0.5; Option<f64> {
            kind: SOFTNESS, default: "0.5", infotext: Changed("Soft inpainting difference threshold"),
        }
        /// Soft inpainting: how sharp the border between input and result is.
        soft_difference_contrast as soft_difference_contrast: f64 = 2.0; Option<f64> {
            kind: SOFTNESS, default: "2", infotext: Changed("Soft inpainting difference contrast"),
        }
        /// Pastes the input back around the mask: pixels outside of it are the input's own.
        paste_back as paste_back: bool = true; Option<bool> { kind: Switch, default: "on", infotext: Changed("Paste back") }
    }
    by_hand in Hires {
        /// The image to begin with; - is the standard input. Without a size, the results have its size, rounded down.
        init: Option<PathBuf> { kind: File, aliases: &["init_img"], group: Input }
        /// Part of the input that is regenerated: the white part of an image, or its opaque part if it has transparency.
        mask: Option<PathBuf> { kind: File, group: Input }
        /// Regenerates the part outside of the mask instead.
        mask_invert: bool { kind: Flag, infotext: Changed(labels::MASK_MODE), infotext_aliases: &["Mask inverted"], group: Input }
        /// Extends the input by pixels, as top=128,left=64. The border is regenerated.
        extend: Option<Extend> { kind: Borders, infotext: Changed("Extend"), group: Input }
        /// Makes images again in a second pass that is larger by this factor (hires fix). Sides are rounded down to multiples
        /// of 8.
        hires_scale: Option<f64> { kind: Number { min: 1.0, max: 16.0 }, usual: "1.5 to 2", infotext: Changed("Hires upscale") }
        /// Size of the second pass, as 1024x1536, instead of `hires_scale`. Of another shape, the middle is cut out.
        hires_size: Option<(usize, usize)> { kind: Size, infotext: Changed("Hires resize") }
        /// Upscaler of the first pass's images: their latents are interpolated, or their pixels are enlarged by a filter or by
        /// a file of `kiln upscale` and encoded.
        hires_upscaler: Option<HiresUpscaler> {
            kind: Upscaler(HiresUpscaler::names), default: "latent", infotext: Changed("Hires upscaler"),
        }
        /// Steps of the second pass.
        hires_steps: Option<usize> { kind: STEPS, default: "those of the first pass", infotext: Changed("Hires steps") }
        /// How much of the image the second pass changes, more than 0. Below 0.5 interpolated latents stay blurred.
        hires_strength: Option<f64> { kind: PART, default: "0.7", infotext: Within(labels::DENOISING_STRENGTH) }
        /// Strength of guidance in the second pass.
        hires_cfg_scale: Option<f64> {
            kind: STRENGTH, usual: "3 to 12", default: "that of the first pass", infotext: Changed("Hires CFG Scale"),
        }
        /// The sampler of the second pass.
        hires_sampler: Option<SamplerChoice> {
            kind: SAMPLER, default: "that of the first pass", infotext: Changed(labels::HIRES_SAMPLER),
        }
        /// The spacing of the noise levels of the second pass.
        hires_scheduler: Option<SigmaSchedule> {
            kind: SCHEDULE, default: "that of the first pass", infotext: Changed(labels::HIRES_SCHEDULE_TYPE),
        }
        /// The prompt of the second pass.
        hires_prompt: Option<String> { kind: Text, default: "that of the first pass", infotext: Changed("Hires prompt") }
        /// The negative prompt of the second pass.
        hires_negative_prompt: Option<String> {
            kind: Text, default: "that of the first pass", infotext: Changed("Hires negative prompt"),
        }
        /// The folder of upscalers that are named without a path.
        upscaler_dir: Option<PathBuf> { kind: Folder }
    }
    /// The second model of a run. The defaults are diffusers'.
    group RefinerOptions in Image {
        /// Fraction of the run after which the refiner takes over, more than 0 and less than 1.
        refiner_switch as switch: f64 = 0.8; Option<f64> {
            kind: PART, default: "0.8", infotext: Changed(labels::REFINER_SWITCH), aliases: &["refiner_switch_at"],
        }
        /// Unit of `refiner_switch` with `rule` a1111: steps, or timesteps as AUTOMATIC1111 does from 1.9 on.
        refiner_switch_by as switch_by: SwitchBy = SwitchBy::Steps; Option<SwitchBy> {
            kind: Choice(|| SwitchBy::IDS.to_vec()), default: "steps", infotext: Changed("Refiner switch by"),
        }
        /// Aesthetic score that a refiner of SDXL takes with the prompt.
        aesthetic_score as aesthetic_score: f64 = 6.0; Option<f64> {
            kind: SCORE, default: "6", infotext: Changed("Aesthetic score"),
        }
        /// Aesthetic score that a refiner of SDXL takes with the negative prompt.
        negative_aesthetic_score as negative_aesthetic_score: f64 = 2.5; Option<f64> {
            kind: SCORE, default: "2.5", infotext: Changed("Negative aesthetic score"),
        }
    }
    by_hand in Image {
        /// A second model that takes over the last steps: a refiner of SDXL, or another model with the same latents. With `rule`
        /// diffusers it begins a sampler of its own, with a1111 the sampler goes on.
        refiner: Option<PathBuf> { kind: Model, infotext: Changed(labels::REFINER) }
    }
    /// The sizes that SDXL's denoiser takes besides texts. A refiner takes no target size.
    group SizeOptions in Image {
        /// SDXL: width and height, as 1024x1024, that an image of the training had before it was made smaller and cut: less gives
        /// results as from small images.
        original_size as original: Option<(usize, usize)> = None; Option<(usize, usize)> {
            kind: Size, default: "the results' size", infotext: Changed("SDXL original size"),
            needs: Some(Sizes),
        }
        /// SDXL: the pixels that were cut off to the left and above, as 256,0; 0,0 gives results whose object is in the middle.
        crop as crop: Option<Crop> = None; Option<Crop> { kind: Form("256,0"), default: "0,0", infotext: Changed("SDXL crop"), needs: Some(Sizes) }
        /// SDXL: width and height that results have for the denoiser.
        target_size as target: Option<(usize, usize)> = None; Option<(usize, usize)> {
            kind: Size, default: "the results' size", infotext: Changed("SDXL target size"),
            needs: Some(Sizes),
        }
        /// SDXL: the value of `original_size` for the negative prompt.
        negative_original_size as negative_original: Option<(usize, usize)> = None; Option<(usize, usize)> {
            kind: Size, default: "the prompt's", infotext: Changed("SDXL negative original size"),
            needs: Some(Sizes),
        }
        /// SDXL: the value of `crop` for the negative prompt.
        negative_crop as negative_crop: Option<Crop> = None; Option<Crop> {
            kind: Form("256,0"), default: "the prompt's", infotext: Changed("SDXL negative crop"),
            needs: Some(Sizes),
        }
        /// SDXL: the value of `target_size` for the negative prompt.
        negative_target_size as negative_target: Option<(usize, usize)> = None; Option<(usize, usize)> {
            kind: Size, default: "the prompt's", infotext: Changed("SDXL negative target size"),
            needs: Some(Sizes),
        }
    }
    by_hand in Image {}
        }
    };
}

pub(super) use input_options;
