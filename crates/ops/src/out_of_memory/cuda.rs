//! Errors of CUDA's driver and of cuBLAS.

use candle_core::cuda::cudarc::cublas::sys::cublasStatus_t;
use candle_core::cuda::cudarc::driver::sys::CUresult;
use candle_core::cuda_backend::CudaError;

pub(super) fn is_out_of_memory(error: &(dyn std::error::Error + 'static)) -> bool {
    match error.downcast_ref::<CudaError>() {
        Some(CudaError::Cuda(error) | CudaError::Load { cuda: error, .. }) => {
            error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
        }
        Some(CudaError::Cublas(error)) => error.0 == cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED,
        _ => false,
    }
}
