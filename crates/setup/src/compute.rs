//! The arithmetic of the denoiser's large layers.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use candle_core::{DType, Device};
use kiln_models::ModelFolder;
use kiln_weights::{ByteNumber, EightBitLayers, EightBits};

use crate::error::{Error, Result};
use crate::scales_file::{ComputeScales, check_exists};
use crate::setup::Setup;

/// How the large layers of the denoiser are computed: the linear layers of its transformers, and the 3x3 convolutions of its
/// residual blocks. All other layers compute in the type of the activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ComputeType {
    /// The type in the settings of an image, else [`Self::Native`].
    #[default]
    Auto,
    /// In the type of the activations.
    Native,
    /// Products of 8-bit integers, on the CPU and on GPUs of compute capability 7.5 and later: half the memory of 16 bits, and images
    /// that differ a little. Faster on CPUs, not on Hopper.
    Int8,
    /// Products of 8-bit floats (e4m3), on GPUs of compute capability 8.9 and later: half the memory of 16 bits, and images that differ a
    /// little. Faster on Hopper.
    Fp8,
}

impl fmt::Display for ComputeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Int8 => "int8",
            Self::Fp8 => "fp8",
        })
    }
}

impl FromStr for ComputeType {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let all = [Self::Auto, Self::Native, Self::Int8, Self::Fp8];
        all.into_iter().find(|kind| kind.to_string() == text).ok_or_else(|| "expected auto, native, int8 or fp8".into())
    }
}

impl Setup {
    /// Refuses a way to compute that GPUs lack, or the CPU.
    ///
    /// # Errors
    /// [`crate::Error::Request`] names the option.
    pub fn check_compute(&self, on_gpu: bool) -> Result<()> {
        match (self.compute, on_gpu) {
            (ComputeType::Fp8, false) => {
                self.refused_compute("native or int8: fp8 computes on a GPU only (`device` cuda)")
            }
            (ComputeType::Int8, true) => self.scales.as_ref().map_or(Ok(()), |path| {
                let expected = "none on a GPU: scales are for int8 on the CPU (`device` cpu)";
                Err(Error::value("scales", path.display(), expected))
            }),
            _ => Ok(()),
        }
    }

    /// Refuses a way to compute that a device lacks for this type of activations.
    ///
    /// # Errors
    /// See [`Self::check_compute`].
    pub fn check_compute_on(&self, device: &Device, dtype: DType) -> Result<()> {
        self.check_compute(device.is_cuda())?;
        let Some(EightBits::W8A8(number)) = self.eight_bits(device.is_cuda()) else { return Ok(()) };
        if dtype == DType::F32 {
            let expected = format!("native: on a GPU, {} computes in f16 and bf16 only (`dtype`)", self.compute);
            return self.refused_compute(&expected);
        }
        if kiln_ops::device::supports_w8a8(device, number, dtype) {
            return Ok(());
        }
        self.refused_compute(match number {
            ByteNumber::E4m3 => {
                "native or int8: fp8 needs a GPU of compute capability 8.9 or later, and a build with code for it"
            }
            ByteNumber::Int8 => {
                "native: int8 needs a GPU of compute capability 7.5 or later, and a build with code for it"
            }
        })
    }

    fn refused_compute(&self, expected: &str) -> Result<()> {
        let found = self.compute.to_string();
        Err(kiln_request::Error::Value { name: "compute", found, expected: expected.into() }.into())
    }

    /// The format of products in 8 bits, on a GPU or on the CPU; `None` if all layers are computed in the type of the activations.
    pub fn eight_bits(&self, on_gpu: bool) -> Option<EightBits> {
        match self.compute {
            ComputeType::Int8 if on_gpu => Some(EightBits::W8A8(ByteNumber::Int8)),
            ComputeType::Int8 => Some(EightBits::Int8),
            ComputeType::Fp8 => Some(EightBits::W8A8(ByteNumber::E4m3)),
            ComputeType::Auto | ComputeType::Native => None,
        }
    }

    /// The layers that are computed in 8 bits; `None` if all are computed in the type of the activations. Each call measures
    /// the range of its input: without [`Setup::scales`].
    pub fn eight_bit_layers(&self, on_gpu: bool) -> Option<Arc<EightBitLayers>> {
        let kind = self.eight_bits(on_gpu)?;
        Some(Arc::new(EightBitLayers { kind, least_outputs: self.least_outputs(), ..EightBitLayers::default() }))
    }

    /// [`EightBitLayers::least_outputs`]. With AMX, rounding the input of a linear layer takes longer than its product saves
    /// when the layer has few outputs: of SD 1.5's in bf16 on 16 threads, 320 to 320 channels take 1.5 times as long as in
    /// bf16, 1280 to 320 1.3 times, 640 to 640 as long, and 320 to 2560 0.8 times.
    fn least_outputs(&self) -> usize {
        const LEAST_WITH_AMX: usize = 640;
        let in_bf16 = self.dtype.resolve(false) == DType::BF16;
        if in_bf16 && kiln_ops::device::cpu_info().path == "amx" { LEAST_WITH_AMX } else { 0 }
    }

    /// The layers of [`Setup::scales`], which must be those of `model`; of any model if it is `None`.
    ///
    /// # Errors
    /// Errors of [`ComputeScales::read`], and [`crate::Error::Request`] for scales of another model.
    pub fn scaled_layers(&self, model: Option<&ModelFolder>, on_gpu: bool) -> Result<Option<Arc<EightBitLayers>>> {
        let path = self.scales.as_deref().filter(|_| self.compute == ComputeType::Int8 && !on_gpu);
        let Some(path) = path else { return Ok(self.eight_bit_layers(on_gpu)) };
        let scales = ComputeScales::read(path)?;
        model.map_or(Ok(()), |model| scales.check(path, model, self.cache_dir.as_deref()))?;
        Ok(Some(Arc::new(EightBitLayers { least_outputs: self.least_outputs(), ..scales.eight_bit_layers() })))
    }

    /// Refuses scales that are not there, and scales without products in 8 bits.
    ///
    /// # Errors
    /// [`crate::Error::Files`] and [`crate::Error::Request`].
    pub fn check_scales(&self) -> Result<()> {
        let Some(path) = &self.scales else { return Ok(()) };
        check_exists(path)?;
        match self.compute {
            ComputeType::Int8 => Ok(()),
            _ => Err(Error::value("scales", path.display(), "`compute` int8 too: scales are for products in 8 bits")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::DeviceChoice;

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        let refused = |compute: &str, on_gpu| {
            let setup = Setup { device: DeviceChoice::Cpu, compute: compute.parse().unwrap(), ..Setup::default() };
            setup.check_compute(on_gpu).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!((refused("int8", false), refused("native", true), refused("auto", true)), Default::default());
        assert_eq!(refused("fp8", true), "");
        assert_eq!(refused("int8", true), "");
        let scales = Some("scales.safetensors".into());
        let setup = Setup { compute: ComputeType::Int8, scales, ..Setup::default() };
        assert!(setup.check_compute(true).unwrap_err().to_string().contains("scales are for int8 on the CPU"));
        assert!(setup.check_compute(false).is_ok());
        assert!(refused("fp8", false).contains("`compute` is fp8") && refused("fp8", false).contains("on a GPU only"));
        let setup = Setup { compute: ComputeType::Fp8, ..Setup::default() };
        assert!(setup.check_compute_on(&Device::Cpu, DType::F16).is_err());
        assert_eq!("int4".parse::<ComputeType>().unwrap_err(), "expected auto, native, int8 or fp8");
    }
}
