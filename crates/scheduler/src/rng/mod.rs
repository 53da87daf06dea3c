//! PyTorch's random numbers, without PyTorch: its generator for processors and the one for cards.

mod cpu;
mod cuda;

pub use cpu::CpuRng;
pub use cuda::CudaRng;

/// Whose random numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RngKind {
    /// PyTorch's generator for processors: [`CpuRng`].
    #[default]
    Cpu,
    /// PyTorch's generator for cards: [`CudaRng`].
    Cuda,
}

/// A generator of either kind.
#[derive(Debug, Clone)]
pub(crate) enum Rng {
    Cpu(CpuRng),
    Cuda(CudaRng),
}

impl Rng {
    /// What `torch.Generator(kind).manual_seed(seed)` is.
    pub fn new(kind: RngKind, seed: u64) -> Self {
        match kind {
            RngKind::Cpu => Self::Cpu(CpuRng::new(seed)),
            RngKind::Cuda => Self::Cuda(CudaRng::new(seed)),
        }
    }

    /// What `torch.randn(n)` gives.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        match self {
            Self::Cpu(rng) => rng.normals(n),
            Self::Cuda(rng) => rng.normals(n),
        }
    }
}
