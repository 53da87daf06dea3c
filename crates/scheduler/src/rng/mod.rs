//! PyTorch's random numbers without PyTorch: its CPU generator and its CUDA generator.

mod cpu;
mod cuda;

pub use cpu::CpuRng;
pub use cuda::CudaRng;

/// The random number generator to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RngKind {
    /// PyTorch's CPU generator: [`CpuRng`].
    #[default]
    Cpu,
    /// PyTorch's CUDA generator: [`CudaRng`].
    Cuda,
}

/// A generator of either kind.
#[derive(Debug, Clone)]
pub(crate) enum Rng {
    Cpu(CpuRng),
    Cuda(CudaRng),
}

impl Rng {
    /// The equivalent of `torch.Generator(kind).manual_seed(seed)`.
    pub fn new(kind: RngKind, seed: u64) -> Self {
        match kind {
            RngKind::Cpu => Self::Cpu(CpuRng::new(seed)),
            RngKind::Cuda => Self::Cuda(CudaRng::new(seed)),
        }
    }

    /// The values of `torch.randn(n)`.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        match self {
            Self::Cpu(rng) => rng.normals(n),
            Self::Cuda(rng) => rng.normals(n),
        }
    }
}
