//! PyTorch's generators for scripts without PyTorch.

use kiln_engine::{CpuRng, CudaRng};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::elements::Elements;
use crate::error::refused;

/// The most values of one draw: the noise of 256 images of 4096x4096.
const MAX_DRAW: usize = 256 * 4 * 512 * 512;

/// The equivalent of `torch.Generator(kind).manual_seed(seed)`, which goes on with every draw.
#[pyclass(frozen, module = "kiln._kiln")]
pub struct Rng(Mutex<Kind>);

enum Kind {
    Cpu(CpuRng),
    Cuda(CudaRng),
}

#[pymethods]
impl Rng {
    /// A generator in its initial state; `kind` is cpu or cuda.
    #[new]
    fn new(seed: u64, kind: &str) -> PyResult<Self> {
        match kind {
            "cpu" => Ok(Self(Mutex::new(Kind::Cpu(CpuRng::new(seed))))),
            "cuda" => Ok(Self(Mutex::new(Kind::Cuda(CudaRng::new(seed))))),
            _ => Err(refused("kind", kind, "cpu or cuda")),
        }
    }

    /// The values of `torch.randn(n)`.
    fn normals(&self, n: usize) -> PyResult<Elements> {
        if n > MAX_DRAW {
            return Err(refused("n", n, &format!("{MAX_DRAW} at most")));
        }
        let values = match &mut *self.0.lock() {
            Kind::Cpu(rng) => rng.normals(n),
            Kind::Cuda(rng) => rng.normals(n),
        };
        Ok(Elements::of_f32(values, &[n]))
    }
}
