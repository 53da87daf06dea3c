//! A proof that a device computes what it should: each operator against the CPU in f32, and an image of a small model.

mod cases;
mod computation;
mod image;
mod operands;
mod tested;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use kiln_engine::{Machine, ModelFolder, ResolvedDevice, Setup, start_threads};
use kiln_ops::device::supports_w8a8;
use kiln_ops::portable::{Backend, PortableTensor};
use serde::Serialize;

use cases::{Case, Run};
pub use image::ImageReport;
use operands::Operands;
use tested::Tested;

use crate::error::{Error, Result};

/// A test of a device.
#[derive(Debug, Clone, Default)]
pub struct SelfTest {
    /// The tested device and type.
    pub setup: Setup,
    /// The model of the image; without it only operators are tested.
    pub model: Option<ModelFolder>,
}

/// The results of a test.
#[derive(Debug, Clone, Serialize)]
pub struct SelfTestReport {
    /// The version of the program.
    pub version: &'static str,
    /// Its commit, which the program sets if its build knew it.
    pub commit: Option<&'static str>,
    /// The machine.
    pub machine: Machine,
    /// The type of weights and activations.
    pub dtype: String,
    /// The operators.
    pub operators: Vec<OperatorReport>,
    /// The image.
    pub image: Option<ImageReport>,
    /// How long the test took.
    pub seconds: f64,
}

/// One operator at operands of one shape.
#[derive(Debug, Clone, Serialize)]
pub struct OperatorReport {
    /// The operator.
    pub name: String,
    /// The shapes of its operands.
    pub shape: String,
    /// The largest error, relative to the largest result of the CPU in f32; `None` if there is no result.
    pub error: Option<f64>,
    /// The largest error that is allowed.
    pub bound: f64,
    /// Why there is no result.
    pub failure: Option<String>,
}

impl OperatorReport {
    /// Whether there is a result, within its bound.
    pub fn has_passed(&self) -> bool {
        self.error.is_some_and(|error| error <= self.bound)
    }
}

impl SelfTestReport {
    /// The error if an operator or the image failed.
    pub fn failure(&self) -> Option<Error> {
        let images = self.image.iter().map(ImageReport::has_passed);
        let passed: Vec<bool> = self.operators.iter().map(OperatorReport::has_passed).chain(images).collect();
        let failed = passed.iter().filter(|&&passed| !passed).count();
        (failed > 0).then(|| Error::SelfTest { failed, total: passed.len(), device: self.machine.device.clone() })
    }
}

impl SelfTest {
    /// Runs the test. `watch` gets what is tested next, and may stop.
    ///
    /// # Errors
    /// Errors of the options and of opening the device; [`kiln_engine::Error::Interrupted`] if `watch` stopped. An operator that fails
    /// is part of the report.
    pub fn run(&self, watch: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Result<SelfTestReport> {
        let start = Instant::now();
        start_threads(self.setup.threads)?;
        let setup = Setup { threads: None, ..self.setup.clone() };
        let ResolvedDevice { device, backend, dtype, open: _open, .. } = setup.resolve()?;
        let mut operators = Vec::new();
        for case in cases::cases() {
            let Some(compute) = case.on(&device, backend.as_ref(), dtype) else { continue };
            proceed(watch(&case.name))?;
            operators.push(case.report(dtype, compute()));
        }
        let machine = Machine::new(&device).with_backend(backend.as_ref());
        let image = match &self.model {
            Some(model) => {
                proceed(watch("an image"))?;
                Some(image::report(model, &setup, dtype, watch)?)
            }
            None => None,
        };
        Ok(SelfTestReport {
            version: env!("CARGO_PKG_VERSION"),
            commit: None,
            machine,
            dtype: format!("{dtype:?}").to_lowercase(),
            operators,
            image,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

fn proceed(flow: ControlFlow<()>) -> Result<()> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(kiln_engine::Error::Interrupted.into()),
    }
}

/// The result of a case, in host memory.
type Compute<'a> = Box<dyn Fn() -> kiln_nn::Result<Tensor> + 'a>;

impl Case {
    /// The computation on `backend`, or else on `device`; `None` if its types are not there.
    fn on<'a>(
        &'a self,
        device: &'a Device,
        backend: Option<&'a Arc<dyn Backend>>,
        dtype: DType,
    ) -> Option<Compute<'a>> {
        if let Some(backend) = backend {
            let Run::Anywhere(computation) = &self.run else { return None };
            let on = move || Operands::<PortableTensor>::of_device(backend, dtype);
            return Some(Box::new(move || Tested::download(&computation.run(&mut on())?)));
        }
        let is_there = self.computed.is_none_or(|number| device.is_cpu() || supports_w8a8(device, number, dtype));
        is_there.then(|| Box::new(move || self.on_candle(Operands::of_device(device, dtype))) as _)
    }

    fn on_candle(&self, mut on: Operands<Tensor>) -> kiln_nn::Result<Tensor> {
        let result = match &self.run {
            Run::Anywhere(computation) => computation.run(&mut on),
            Run::OnCandle(run) => run(&mut on),
        };
        result?.download()
    }

    fn report(&self, dtype: DType, found: kiln_nn::Result<Tensor>) -> OperatorReport {
        // Two units in the last place of the largest result.
        let bound = self.bound.max(match dtype {
            DType::F16 => 1.0 / 512.0,
            DType::BF16 => 1.0 / 64.0,
            _ => 0.0,
        });
        let error = found.and_then(|found| relative_error(&found, &self.on_candle(Operands::exact(dtype))?));
        let (error, failure) = match error {
            Ok(error) => (Some(error), None),
            Err(error) => (None, Some(error.to_string())),
        };
        OperatorReport { name: self.name.clone(), shape: self.shape.clone(), error, bound, failure }
    }
}

/// The largest error, relative to the largest expected number. Infinite if a result is not a number.
fn relative_error(found: &Tensor, expected: &Tensor) -> kiln_nn::Result<f64> {
    let values = |x: &Tensor| -> kiln_nn::Result<Vec<f32>> { Ok(x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?) };
    let (found, expected) = (values(found)?, values(expected)?);
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    let errors = found.iter().zip(&expected).map(|(found, expected)| f64::from((found - expected).abs() / largest));
    let error = errors.fold(0.0, |worst: f64, error| if error.is_nan() { f64::INFINITY } else { worst.max(error) });
    Ok(if found.len() == expected.len() { error } else { f64::INFINITY })
}

#[cfg(test)]
mod tests {
    use kiln_engine::{DTypeChoice, DeviceChoice, PortableDevice};

    use super::*;

    fn test(dtype: DTypeChoice) -> SelfTest {
        SelfTest { setup: Setup { device: DeviceChoice::Cpu, dtype, ..Setup::default() }, model: None }
    }

    #[test]
    fn the_cpu_passes_in_16_bits() {
        let mut names = Vec::new();
        let report = test(DTypeChoice::Bf16).run(&mut |name| {
            names.push(name.to_string());
            ControlFlow::Continue(())
        });
        let report = report.unwrap();
        let failed: Vec<_> = report.operators.iter().filter(|operator| !operator.has_passed()).collect();
        assert!(report.failure().is_none() && report.operators.len() == names.len(), "{failed:#?}");
        assert!(
            ["linear, q4_k", "linear, nf4", "linear, computed in e4m3"]
                .iter()
                .all(|name| names.contains(&name.to_string()))
        );
    }

    #[test]
    #[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
    fn vulkan_passes_in_its_types() {
        let gpu: PortableDevice = "vulkan".parse().unwrap();
        let adapter = gpu.find().unwrap();
        let types = if adapter.has_f16 { &[DTypeChoice::F32, DTypeChoice::F16][..] } else { &[DTypeChoice::F32] };
        for &dtype in types {
            let setup = Setup { device: DeviceChoice::Portable(gpu), dtype, ..Setup::default() };
            let report = SelfTest { setup, model: None }.run(&mut |_| ControlFlow::Continue(())).unwrap();
            for OperatorReport { name, shape, error, bound, failure } in &report.operators {
                let error = error.unwrap_or(f64::NAN);
                println!("{name}, {shape}, {dtype:?}: {error:.1e} of {bound:.1e} {failure:?}");
            }
            assert!(report.failure().is_none(), "{}", report.failure().unwrap());
            let named = |name: &str| report.operators.iter().any(|operator| operator.name == name);
            assert!(named("linear") && named("grouped attention with lengths"));
            assert!(named("linear, q4_k") && named("linear, int8_convrot256") && !named("linear, computed in int8"));
            let features = report.machine.features.unwrap();
            assert!(report.machine.device.contains(&adapter.name) && features.contains(&adapter.driver), "{features}");
        }
    }

    #[test]
    fn a_wrong_result_a_missing_one_and_one_that_is_no_number_fail() {
        let run = |of_device: fn(&mut Operands<Tensor>) -> kiln_nn::Result<Tensor>| {
            let run = Run::OnCandle(Box::new(of_device));
            let case = Case { name: "test".into(), shape: String::new(), bound: 1e-4, computed: None, run };
            let found = case.on(&Device::Cpu, None, DType::BF16).unwrap()();
            case.report(DType::BF16, found)
        };
        assert!(run(|on| on.tensor(&[4])).has_passed());
        // Only the tested device has another type.
        let wrong = run(|on| {
            let x = on.tensor(&[4])?;
            Ok(if x.dtype() == DType::BF16 { (x * 2.0)? } else { x })
        });
        assert!(!wrong.has_passed() && wrong.error.is_some_and(|error| error > 0.1), "{wrong:?}");
        let nan = run(|on| {
            let x = on.tensor(&[4])?;
            Ok(if x.dtype() == DType::BF16 { (x * f64::NAN)? } else { x })
        });
        assert_eq!(nan.error, Some(f64::INFINITY));
        let failed = run(|on| Ok(on.tensor(&[4])?.reshape(5)?));
        assert!(!failed.has_passed() && failed.failure.is_some(), "{failed:?}");
    }

    #[test]
    fn a_test_can_be_stopped() {
        let error = test(DTypeChoice::F32).run(&mut |_| ControlFlow::Break(())).unwrap_err();
        assert!(matches!(error, crate::Error::Engine(kiln_engine::Error::Interrupted)), "{error}");
    }
}
