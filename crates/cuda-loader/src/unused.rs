//! Functions that candle refers to and Kiln does not use: those of cuRAND and NVRTC, and candle's kernels for quantized
//! tensors on a GPU, which would bring 35 MB and CUDA's runtime.
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

/// One of candle's kernels for quantized tensors. They return nothing, so that an error cannot be reported.
extern "C" fn no_kernel() {
    eprintln!(
        "error: candle's kernels for quantized tensors are not in this program; Kiln has its own (kiln-ops, matrix)"
    );
    std::process::abort();
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

forward! {
    KERNELS, crate::unused::no_kernel, [
        moe_gemm_wmma moe_gemm_gguf moe_gemm_gguf_prefill launch_mmvq_gguf_q4_0_bf16_plain
        launch_mmvq_gguf_q4_1_bf16_plain launch_mmvq_gguf_q5_0_bf16_plain launch_mmvq_gguf_q5_1_bf16_plain
        launch_mmvq_gguf_q8_0_bf16_plain launch_mmvq_gguf_q2_k_bf16_plain launch_mmvq_gguf_q3_k_bf16_plain
        launch_mmvq_gguf_q4_k_bf16_plain launch_mmvq_gguf_q5_k_bf16_plain launch_mmvq_gguf_q6_k_bf16_plain
        launch_mmvq_gguf_q4_0_f32_plain launch_mmvq_gguf_q4_1_f32_plain launch_mmvq_gguf_q5_0_f32_plain
        launch_mmvq_gguf_q5_1_f32_plain launch_mmvq_gguf_q8_0_f32_plain launch_mmvq_gguf_q2_k_f32_plain
        launch_mmvq_gguf_q3_k_f32_plain launch_mmvq_gguf_q4_k_f32_plain launch_mmvq_gguf_q5_k_f32_plain
        launch_mmvq_gguf_q6_k_f32_plain launch_mmvq_gguf_q4_0_f16_plain launch_mmvq_gguf_q4_1_f16_plain
        launch_mmvq_gguf_q5_0_f16_plain launch_mmvq_gguf_q5_1_f16_plain launch_mmvq_gguf_q8_0_f16_plain
        launch_mmvq_gguf_q2_k_f16_plain launch_mmvq_gguf_q3_k_f16_plain launch_mmvq_gguf_q4_k_f16_plain
        launch_mmvq_gguf_q5_k_f16_plain launch_mmvq_gguf_q6_k_f16_plain launch_mmvq_gguf_quantize_q8_1_bf16
        launch_mmvq_gguf_quantize_q8_1_f16 launch_mmvq_gguf_quantize_q8_1_f32 launch_mmq_quantize_q8_1_D4
        launch_mmq_quantize_q8_1_DS4 launch_mmq_quantize_q8_1_D2S6 launch_mmq_gguf_q4_0 launch_mmq_gguf_q4_1
        launch_mmq_gguf_q5_0 launch_mmq_gguf_q5_1 launch_mmq_gguf_q8_0 launch_mmq_gguf_q2_k launch_mmq_gguf_q3_k
        launch_mmq_gguf_q4_k launch_mmq_gguf_q5_k launch_mmq_gguf_q6_k
    ]
}

/// All of them: a reference makes the linker take them.
pub(crate) static ALL: [&[crate::forward::Function]; 6] = [GENERATOR, SETTINGS, NUMBERS, COMPILER, TEXTS, KERNELS];
