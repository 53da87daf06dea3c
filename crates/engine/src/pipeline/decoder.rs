//! From latents to an image: the model's own autoencoder, or a tiny one in its place, in a type that holds its numbers.
//!
//! f16 ends at 65,504, and some autoencoders' activations go beyond. Where an image has values that are not finite, the
//! weights are read again in the next wider type, bf16 and then f32, and the image is decoded again; the wider type
//! stays. bf16 comes first since it has f32's range at f16's speed and memory.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_models::{Architecture, ModelFolder, decoder_dtype};
use kiln_nn::TensorLike;
use kiln_nn::ops::portable::{Backend, PortableTensor};
use kiln_ops::ByteRounding;
use kiln_vae::{Tiling, TinyConfig, TinyDecoder, VaeConfig};
use kiln_weights::{
    Checkpoint, KeyRule, MAX_CONFIG_BYTES, ParamSource, Placement, Renamed, Segments, open_component, read_small_text,
};

use crate::component::{ComponentOptions, LoadedComponent, WeightResidency};
use crate::component_spec::ComponentSpec;
use crate::error::{Error, Result};

/// The decoder of a loaded model.
pub(crate) struct Decoder {
    network: Network,
    /// In the model's type, or a wider one.
    part: LoadedComponent,
}

/// A decoder's network.
pub enum Network {
    /// An `AutoencoderKL`.
    Kl(VaeConfig, Box<kiln_vae::Decoder>),
    /// A TAESD.
    Tiny(TinyConfig, Box<TinyDecoder>),
}

/// Numbers overflowed the first type; the second one is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpcastRetry {
    /// The type that overflowed.
    pub from: DType,
    /// The type that is used from now on.
    pub to: DType,
}

/// The next type with more range or digits.
fn wider(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F16 => Some(DType::BF16),
        DType::BF16 => Some(DType::F32),
        _ => None,
    }
}

/// The type in which an autoencoder runs there: `dtype`, or f32 on devices without bf16.
pub fn supported_dtype(dtype: DType, placement: &Placement) -> DType {
    if placement.backend.is_some() && dtype == DType::BF16 { DType::F32 } else { dtype }
}

impl Decoder {
    /// Opens `taesd` if it is given, a file or a folder, else the model's own decoder: never both. No weights are read.
    pub(crate) fn open(
        model: &ModelFolder,
        taesd: Option<&Path>,
        placement: &Placement,
        options: &ComponentOptions,
    ) -> Result<Self> {
        let (network, source, placement) = autoencoder(model, taesd, placement)?;
        tracing::info!(dtype = placement.dtype.as_str(), "decoder");
        let spec = ComponentSpec::DECODER;
        let part = LoadedComponent::shared(spec, network.segments(), source, &placement, options, "decoder");
        part.check().map_err(|error| blame(error, taesd))?;
        Ok(Self { network, part })
    }

    /// The weights.
    pub(crate) fn part(&self) -> &LoadedComponent {
        &self.part
    }

    /// Latents as the denoiser gives them, `(n, c, h, w)` in f32 on any device, to images `(n, f h, f w, 3)` in u8 in the host's
    /// memory. `upcast` is called before an image is decoded again.
    ///
    /// # Errors
    /// [`Error::NotANumber`] where f32 does not hold the numbers either.
    pub(crate) fn decode(
        &mut self,
        latents: &Tensor,
        keep: &WeightResidency,
        (tiling, rounding): (Tiling, ByteRounding),
        upcast: &mut dyn FnMut(UpcastRetry) -> Result<()>,
    ) -> Result<Tensor> {
        let Self { network, part } = self;
        let latents = latents.to_device(&part.placement().device)?;
        in_a_type_that_holds(part, keep, "the VAE", upcast, |part, dtype| {
            let images = part.run(|| match &part.placement().backend {
                Some(backend) => network.decode_on(backend, &latents, dtype, tiling),
                None => network.decode(&latents, dtype, tiling),
            })?;
            // On the device: bytes are a quarter of what would be copied.
            let bytes = kiln_ops::image_bytes(&images, rounding)?.to_device(&Device::Cpu)?;
            Ok((bytes, kiln_ops::count_not_finite(&images)?))
        })
    }
}

/// The result of `run` in the type of the part's weights; if it has values that are not finite, whose number `run` gives, in the next
/// wider type, in which the weights stay. `upcast` is called before that.
///
/// # Errors
/// [`Error::NotANumber`] if f32 does not hold the numbers either, and errors of `run`.
pub(crate) fn in_a_type_that_holds(
    part: &mut LoadedComponent,
    keep: &WeightResidency,
    stage: &'static str,
    upcast: &mut dyn FnMut(UpcastRetry) -> Result<()>,
    mut run: impl FnMut(&LoadedComponent, DType) -> Result<(Tensor, usize)>,
) -> Result<Tensor> {
    let mut keep = keep.clone();
    loop {
        part.enter(&keep)?;
        let from = part.placement().dtype;
        let (result, count) = run(part, from)?;
        if count == 0 {
            return Ok(result);
        }
        let remedy = "its weights are damaged, or belong to another model".to_string();
        let to = wider(from).map(|to| supported_dtype(to, part.placement())).ok_or(Error::NotANumber {
            stage,
            count,
            remedy,
        })?;
        upcast(UpcastRetry { from, to })?;
        part.set_dtype(to); // both do not need to fit at once
        keep = keep.widened(from, to);
    }
}

impl Network {
    /// The decoder that `config` describes.
    pub fn kl(config: VaeConfig) -> Self {
        let decoder = Box::new(kiln_vae::Decoder::new(&config));
        Self::Kl(config, decoder)
    }

    /// The decoder of a model's configurations: its TAESD if there is one.
    pub fn of(model: &Architecture) -> Self {
        match &model.taesd {
            Some(config) => Self::Tiny(config.clone(), Box::new(TinyDecoder::new(config))),
            None => Self::kl(model.vae.clone()),
        }
    }

    /// Its segments, whose weights are in place when it runs.
    pub fn segments(&self) -> &Segments {
        match self {
            Self::Kl(_, decoder) => decoder.segments(),
            Self::Tiny(_, decoder) => decoder.segments(),
        }
    }

    /// Latents as the denoiser gives them, `(n, c, h, w)` in f32, to images `(n, 3, f h, f w)` of about -1 to 1 in f32, on the
    /// latents' device. Weights and feature maps are in `dtype`. The values may be infinite or NaN. A TAESD, whose maps are
    /// small, is never tiled.
    ///
    /// # Errors
    /// Errors of the network.
    pub fn decode<T: TensorLike>(&self, latents: &T, dtype: DType, tiling: Tiling) -> Result<T> {
        let unscaled = match self {
            Self::Kl(config, _) => config.unscale(latents)?,
            Self::Tiny(config, _) => config.unscale(latents)?,
        };
        let mut x = unscaled.to_dtype(dtype)?;
        drop(unscaled);
        x = match self {
            Self::Kl(_, decoder) => decoder.decode_with(&x, tiling)?,
            Self::Tiny(_, decoder) => decoder.decode(&x)?,
        };
        Ok(x.to_dtype(DType::F32)?)
    }

    /// [`Self::decode`] on a device that is not candle's, which has the weights. Latents and images are in host memory.
    ///
    /// # Errors
    /// Errors of the network and of the device.
    pub fn decode_on(
        &self,
        backend: &Arc<dyn Backend>,
        latents: &Tensor,
        dtype: DType,
        tiling: Tiling,
    ) -> Result<Tensor> {
        let latents = PortableTensor::upload(backend, latents)?;
        Ok(self.decode(&latents, dtype, tiling)?.download()?)
    }

    /// Channels of the latents.
    pub(crate) fn latent_channels(&self) -> usize {
        match self {
            Self::Kl(config, _) => config.latent_channels,
            Self::Tiny(config, _) => config.latent_channels,
        }
    }

    /// Channels of the feature maps at the image's size.
    pub(crate) fn channels(&self) -> usize {
        let of = match self {
            Self::Kl(config, _) => &config.block_out_channels,
            Self::Tiny(config, _) => &config.decoder_block_out_channels,
        };
        of.first().copied().unwrap_or(1)
    }
}

/// The autoencoder of a model, or the TAESD that replaces it: its decoder, its weights, and where and in which type they are
/// stored.
pub(crate) fn autoencoder(
    model: &ModelFolder,
    taesd: Option<&Path>,
    placement: &Placement,
) -> Result<(Network, Box<dyn ParamSource>, Placement)> {
    if let Some(path) = taesd {
        return Ok((tiny(model, path)?, tiny_weights(path)?, placement.clone()));
    }
    let config = model.vae_config().clone();
    let dtype = supported_dtype(decoder_dtype(model.family(), &config, placement.dtype), placement);
    Ok((Network::kl(config), model.files().vae()?, Placement { dtype, ..placement.clone() }))
}

/// The weights of the first convolution of a TAESD's decoder.
const TINY_INPUT: &str = "decoder.layers.0.weight";

/// The weights of a TAESD: a component's folder, or a file.
fn tiny_weights(path: &Path) -> Result<Box<dyn ParamSource>> {
    let source: Box<dyn ParamSource> = match path.is_dir() {
        true => open_component(path)?,
        false => Box::new(Checkpoint::open(path)?),
    };
    Ok(Box::new(Renamed::new(source, KeyRule::TAESD)))
}

/// Names the file if `taesd` has no weights of a decoder.
fn blame(error: Error, taesd: Option<&Path>) -> Error {
    match (error, taesd) {
        (Error::Weights(kiln_weights::Error::Missing { key, .. }), Some(path)) => {
            let problem = format!(
                "is no TAESD that decodes, tensor `{key}` is missing; take a file of an AutoencoderTiny, or taesd_decoder"
            );
            Error::model(path, problem)
        }
        (error, _) => error,
    }
}

/// A file has weights alone, and is TAESD; a folder is in the diffusers layout, with its configuration.
pub(crate) fn tiny(model: &ModelFolder, path: &Path) -> Result<Network> {
    let config = if path.is_dir() {
        let file = path.join("config.json");
        let text = read_small_text(&file, MAX_CONFIG_BYTES).map_err(Error::read(&file))?;
        TinyConfig::from_json(&text).map_err(|error| Error::model(&file, error))?
    } else {
        // As many channels as the decoder's first convolution takes: 4, and 16 in the files for Stable Diffusion 3 and FLUX.1.
        let mut config = TinyConfig::default();
        if let Some(&[_, channels, ..]) = tiny_weights(path)?.info(TINY_INPUT).as_ref().map(|weight| &weight.shape[..])
        {
            config.latent_channels = channels;
        }
        config
    };
    let found = (config.latent_channels, config.upscale(), config.out_channels);
    let vae = model.vae_config();
    let expected = (vae.latent_channels, vae.downscale(), vae.out_channels);
    if found != expected {
        let problem = format!(
            "decodes latents of {} channels, each to {f}x{f} pixels of {}, but the model's have {} channels and stand \
             for {g}x{g} pixels of {}; take a TAESD that was made for this model",
            found.0,
            found.2,
            expected.0,
            expected.2,
            f = found.1,
            g = expected.1,
        );
        return Err(Error::model(path, problem));
    }
    let decoder = Box::new(TinyDecoder::new(&config));
    Ok(Network::Tiny(config, decoder))
}

#[cfg(test)]
mod tests {
    use kiln_testkit::{deviation, fixtures};
    use tempfile::TempDir;

    use kiln_models::{SD, SDXL};

    use super::*;

    const WEIGHTS: &str = "vae/diffusion_pytorch_model.safetensors";

    /// A copy of a tiny model whose decoder's first maps are `factor` times as large, without the other weights.
    fn louder(name: &str, factor: f64) -> (TempDir, ModelFolder) {
        let folder = tempfile::tempdir().unwrap();
        let original = fixtures("models").join(name);
        for entry in std::fs::read_dir(&original).unwrap().map(|entry| entry.unwrap().path()) {
            let to = folder.path().join(entry.file_name().unwrap());
            if entry.is_dir() {
                std::os::unix::fs::symlink(&entry, to).unwrap()
            } else {
                drop(std::fs::copy(entry, to))
            }
        }
        let vae = folder.path().join("vae");
        std::fs::remove_file(&vae).unwrap();
        std::fs::create_dir(&vae).unwrap();
        std::fs::copy(original.join("vae/config.json"), vae.join("config.json")).unwrap();
        let mut tensors = candle_core::safetensors::load(original.join(WEIGHTS), &Device::Cpu).unwrap();
        for (key, tensor) in &mut tensors {
            if key.starts_with("decoder.conv_in.") {
                *tensor = (tensor.to_dtype(DType::F32).unwrap() * factor).unwrap();
            }
        }
        candle_core::safetensors::save(&tensors, folder.path().join(WEIGHTS)).unwrap();
        let model = ModelFolder::open(folder.path()).unwrap();
        (folder, model)
    }

    const HOW: (Tiling, ByteRounding) = (Tiling::Whole, ByteRounding::Nearest);

    fn decoder(model: &ModelFolder, dtype: DType) -> Decoder {
        Decoder::open(model, None, &Placement::new(Device::Cpu, dtype), &ComponentOptions::default()).unwrap()
    }

    /// The image or the error, and the types in which it was decoded again.
    fn decode(decoder: &mut Decoder, seed: u64) -> (Result<Tensor>, Vec<DType>) {
        let latents = kiln_scheduler::ImageNoise::new(seed, 1).latents((4, 8, 8)).unwrap();
        let mut types = Vec::new();
        let image = decoder.decode(&latents, &WeightResidency::Whole, HOW, &mut |widened| {
            types.push(widened.to);
            Ok(())
        });
        (image.map(|image| image.to_dtype(DType::F32).unwrap()), types)
    }

    #[test]
    fn what_overflows_f16_is_decoded_in_bf16() {
        let (_folder, model) = louder("sd1", 30_000.0);
        let mut half = decoder(&model, DType::F16);
        let (image, types) = decode(&mut half, 1);
        assert_eq!(types, [DType::BF16]);
        let image = image.unwrap();
        let in_type = |dtype| decode(&mut decoder(&model, dtype), 1).0.unwrap();
        assert_eq!(deviation(&image, &in_type(DType::BF16)).error, 0.0);
        let error = deviation(&image, &in_type(DType::F32)).error;
        assert!(error < 0.2, "{error} standard deviations from f32");
        // The wider type stays.
        let (image, types) = decode(&mut half, 2);
        assert!(image.is_ok() && types.is_empty());
    }

    /// The error of an 8-bit image in bf16 against f32, with the trained model.
    #[test]
    fn bf16_is_within_half_a_level_of_f32_on_average() {
        let model = ModelFolder::open(&kiln_testkit::repository().join("models/emoji")).unwrap();
        let latents = kiln_testkit::Fixture::open("emoji.safetensors").tensor("a_red_apple").narrow(0, 0, 1).unwrap();
        let levels = |dtype| {
            let mut decoder = decoder(&model, dtype);
            let image = decoder.decode(&latents, &WeightResidency::Whole, HOW, &mut |_| panic!("overflow")).unwrap();
            image.flatten_all().unwrap().to_vec1::<u8>().unwrap()
        };
        let differences = |dtype| {
            let (a, b) = (levels(dtype), levels(DType::F32));
            let all: Vec<f64> = a.iter().zip(&b).map(|(&a, &b)| f64::from(a.abs_diff(b))).collect();
            (all.iter().sum::<f64>() / all.len() as f64, all.iter().fold(0.0, |worst: f64, &d| worst.max(d)))
        };
        let (mean, worst) = differences(DType::BF16);
        println!("bf16: {mean:.3} levels on average, {worst} at the most; f16: {:?}", differences(DType::F16));
        assert!(mean < 0.5 && worst < 16.0, "{mean} levels on average, {worst} at the most");
    }

    #[test]
    fn what_no_type_holds_is_an_error() {
        let (_folder, model) = louder("sd1", f64::NAN);
        let (image, types) = decode(&mut decoder(&model, DType::F16), 1);
        assert_eq!(types, [DType::BF16, DType::F32]);
        let message = image.unwrap_err().to_string();
        assert!(message.starts_with("the VAE gave 12288 values that are not numbers; its weights"), "{message}");
    }

    /// A ring that has room for the largest segment in f16 alone grows with the type.
    #[test]
    fn a_streamed_decoder_is_widened_too() {
        let (_folder, model) = louder("sd1", f64::NAN);
        let mut decoder = decoder(&model, DType::F16);
        let segments = decoder.part.segments();
        let largest = segments.iter().map(|segment| segment.bytes(DType::F16)).max().unwrap();
        let copies = kiln_weights::CopyTimes {
            bytes_per_second: 1e9,
            seconds_per_copy: 0.0,
            seconds_per_wait: 0.0,
            by_engine: false,
        };
        let estimate = kiln_weights::Estimate { seconds: vec![0.0; segments.len()], copies };
        let share = crate::residency::StreamBudget { resident: 0, room: largest };
        let keep = WeightResidency::Streamed { share, estimate, pins: false };
        let latents = kiln_scheduler::ImageNoise::new(1, 1).latents((4, 8, 8)).unwrap();
        let error = decoder.decode(&latents, &keep, HOW, &mut |_| Ok(())).unwrap_err();
        assert!(matches!(error, Error::NotANumber { .. }), "{error}");
    }

    #[test]
    fn xl_models_ask_for_a_wider_type_than_f16() {
        let (_folder, model) = louder("sdxl", 1.0);
        assert!(model.vae_config().force_upcast);
        assert_eq!(decoder(&model, DType::F16).part.placement().dtype, DType::BF16);
        assert_eq!(decoder(&model, DType::F32).part.placement().dtype, DType::F32);
        let mut fixed = model.vae_config().clone();
        fixed.force_upcast = false;
        assert_eq!(decoder_dtype(SDXL, &fixed, DType::F16), DType::F16);
        assert_eq!(decoder_dtype(SD, model.vae_config(), DType::F16), DType::F16);
    }
}
