//! The functions of the driver, cuBLAS and cuBLASLt that cudarc, candle and Kiln call.

use std::ffi::c_int;

use crate::forward::forward;

/// `CUDA_ERROR_STUB_LIBRARY`: the error of the driver's functions before it is loaded, or if it lacks them.
extern "C" fn no_driver() -> c_int {
    34
}

/// `CUBLAS_STATUS_NOT_INITIALIZED`: the error of cuBLAS's functions before it is loaded.
extern "C" fn no_cublas() -> c_int {
    1
}

/// `cuInit` until the driver is loaded: it loads the libraries. Later calls go to the driver.
extern "C" fn load_and_initialize(flags: u32) -> c_int {
    if crate::load().is_err() {
        return no_driver();
    }
    let Some(function) = START.first().map(crate::forward::Function::get) else { return no_driver() };
    // SAFETY: `load` succeeded, so this is the driver's `cuInit`, which has this signature (`cuda.h`).
    let initialize = unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn(u32) -> c_int>(function) };
    initialize(flags)
}

forward! {
    /// The first function of the driver that is called.
    START, crate::functions::load_and_initialize, [cuInit]
}

forward! {
    /// The driver.
    DRIVER, crate::functions::no_driver, [
        cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy_v2 cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevice cuCtxGetLimit
        cuCtxGetStreamPriorityRange cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetFlags cuCtxSetLimit cuCtxSynchronize
        cuDestroyExternalMemory cuDeviceCanAccessPeer cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount
        cuDeviceGetDefaultMemPool cuDeviceGetGraphMemAttribute cuDeviceGetMemPool cuDeviceGetName cuDeviceGetUuid
        cuDeviceGetUuid_v2 cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain cuDeviceSetGraphMemAttribute
        cuDeviceSetMemPool cuDeviceTotalMem_v2 cuDriverGetVersion cuEventCreate cuEventDestroy_v2 cuEventElapsedTime
        cuEventElapsedTime_v2 cuEventQuery cuEventRecord cuEventSynchronize cuExternalMemoryGetMappedBuffer
        cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig cuGetErrorName cuGetErrorString cuGetProcAddress_v2
        cuGraphClone cuGraphDestroy cuGraphExecDestroy cuGraphInstantiate cuGraphInstantiateWithFlags cuGraphLaunch
        cuGraphUpload cuImportExternalMemory cuLaunchCooperativeKernel cuLaunchHostFunc cuLaunchKernel cuMemAdvise_v2
        cuMemAllocFromPoolAsync cuMemAllocManaged cuMemAlloc_v2 cuMemFreeHost cuMemFree_v2 cuMemGetInfo_v2
        cuMemHostAlloc cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAttribute cuMemPoolSetAccess cuMemPoolSetAttribute
        cuMemPoolTrimTo cuMemPrefetchAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2
        cuMemcpyDtoH_v2 cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2 cuMemcpyPeerAsync cuMemsetD8Async cuMemsetD8_v2
        cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleLoad cuModuleLoadData cuModuleUnload
        cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
        cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyMaxPotentialClusterSize
        cuProfilerStart cuProfilerStop cuStreamAttachMemAsync cuStreamBeginCapture_v2 cuStreamCreate
        cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamEndCapture cuStreamIsCapturing cuStreamSynchronize
        cuStreamWaitEvent cuTensorMapEncodeTiled
    ]
}

#[cfg(not(feature = "interpose"))]
forward! {
    /// The driver's functions that another crate may define.
    ALLOCATION, crate::functions::no_driver, [cuMemAllocAsync cuMemFreeAsync]
}
/// None: another crate defines them.
#[cfg(feature = "interpose")]
pub(crate) static ALLOCATION: &[crate::forward::Function] = &[];

forward! {
    /// cuBLAS, of which candle makes a handle for each device.
    CUBLAS, crate::functions::no_cublas, [
        cublasCreate_v2 cublasDasum_v2 cublasDestroy_v2 cublasDgemmStridedBatched cublasDgemm_v2 cublasDgemv_v2
        cublasGemmEx cublasGemmGroupedBatchedEx cublasGemmStridedBatchedEx cublasGetPointerMode_v2 cublasGetVersion_v2
        cublasSasum_v2 cublasSetPointerMode_v2 cublasSetStream_v2 cublasSgemmStridedBatched cublasSgemm_v2
        cublasSgemv_v2
    ]
}

forward! {
    /// cuBLASLt, which computes Kiln's matrix products.
    CUBLAS_LT, crate::functions::no_cublas, [
        cublasLtCreate cublasLtDestroy cublasLtLoggerOpenFile cublasLtLoggerSetLevel cublasLtMatmul
        cublasLtMatmulAlgoConfigGetAttribute cublasLtMatmulAlgoGetHeuristic cublasLtMatmulDescCreate
        cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute cublasLtMatmulPreferenceCreate
        cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute cublasLtMatrixLayoutCreate
        cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute
    ]
}
