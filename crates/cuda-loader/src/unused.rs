//! Functions of libraries that candle refers to and Kiln does not use: cuRAND, NVRTC, and CUDA's runtime.
//!
//! candle makes a generator of random numbers with each device. Kiln draws noise on the CPU, so that an image does not
//! depend on the device: a generator that is never asked for a number need not exist.

use std::ffi::{c_char, c_int, c_void};

use crate::forward::forward;

/// `CURAND_STATUS_NOT_INITIALIZED`.
const NO_NUMBERS: c_int = 101;

/// `curandCreateGenerator`: a null handle.
///
/// # Safety
/// `generator` is valid for a write.
unsafe extern "C" fn no_generator(generator: *mut *mut c_void, _kind: c_int) -> c_int {
    // SAFETY: by the contract of cuRAND's function.
    unsafe { generator.write(std::ptr::null_mut()) };
    0
}

/// Functions that succeed without effect.
extern "C" fn nothing() -> c_int {
    0
}

/// cuRAND's functions that would make numbers.
extern "C" fn no_numbers() -> c_int {
    NO_NUMBERS
}

/// `NVRTC_ERROR_INTERNAL_ERROR`: Kiln's kernels are compiled when it is built.
extern "C" fn no_compiler() -> c_int {
    11
}

/// A text for an error of NVRTC.
extern "C" fn no_text() -> *const c_char {
    c"this program does not load the library".as_ptr()
}

forward! { GENERATOR, crate::unused::no_generator, [curandCreateGenerator] }
forward! {
    SETTINGS, crate::unused::nothing, [
        curandDestroyGenerator curandSetPseudoRandomGeneratorSeed curandSetStream curandSetGeneratorOffset
    ]
}
forward! {
    NUMBERS, crate::unused::no_numbers, [
        curandGenerate curandGenerateLogNormal curandGenerateLogNormalDouble curandGenerateNormal
        curandGenerateNormalDouble curandGenerateUniform curandGenerateUniformDouble
    ]
}
forward! {
    COMPILER, crate::unused::no_compiler, [
        nvrtcCompileProgram nvrtcCreateProgram nvrtcDestroyProgram nvrtcGetCUBIN nvrtcGetCUBINSize nvrtcGetPTX
        nvrtcGetPTXSize nvrtcGetProgramLog nvrtcGetProgramLogSize
    ]
}
forward! { TEXTS, crate::unused::no_text, [nvrtcGetErrorString] }

/// All of them: a reference makes the linker take them.
pub(crate) static ALL: [&[crate::forward::Function]; 5] = [GENERATOR, SETTINGS, NUMBERS, COMPILER, TEXTS];
