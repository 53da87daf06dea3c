//! Matrix products through cuBLASLt: f32 sums, bias and residual in the epilogue.
//!
//! cuBLASLt is column-major, so a row-major `y = x w^T` is its `y^T = w x^T`: the weights are its first matrix, of `k`
//! rows and transposed, and our columns its rows. The algorithm is a function of the product's shape and type, the GPU
//! and the library's version: the first candidate of the heuristic, except for [`is_slow`]. Nothing is timed.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;

use candle_core::DType;
use candle_core::cuda::cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_T;
use candle_core::cuda::cudarc::cublaslt::result::{self, CublasError};
use candle_core::cuda::cudarc::cublaslt::sys;

use super::libraries::WORKSPACE;
use crate::error::{Error, Result};

/// The shape and the type of a product, and its epilogue: everything that the choice of an algorithm depends on besides addends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) dtype: DType,
    /// Elements from a row of residual and result to the next, at least `n`.
    pub(crate) y_row: usize,
    /// Whether the result is the approximate GELU of the sums and the bias, without a residual.
    pub(crate) gelu: bool,
}

impl Product {
    /// A product `(m, n)` over `k` with a contiguous result, without an activation.
    pub(crate) fn new([m, n, k]: [usize; 3], dtype: DType) -> Self {
        Self { m, n, k, dtype, y_row: n, gelu: false }
    }
}

/// The addresses of a product's operands: `x` `(m, k)`, `weight` `(n, k)`, `bias` `(n)`, `residual` and `y` `(m, n)`, whose rows may be
/// further apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) x: u64,
    pub(crate) weight: u64,
    pub(crate) bias: Option<u64>,
    pub(crate) residual: Option<u64>,
    pub(crate) y: u64,
}

impl Addresses {
    /// The largest power of two up to 16 that divides all of them.
    fn alignment(&self) -> u32 {
        let all = self.x | self.weight | self.y | self.bias.unwrap_or(0) | self.residual.unwrap_or(0) | 16;
        1 << all.trailing_zeros()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    product: Product,
    bias: bool,
    residual: bool,
    alignment: u32,
    /// Whether both operands are in e4m3.
    e4m3: bool,
}

/// A handle of cuBLASLt and the plans that were made with it.
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    hopper: bool,
    plans: HashMap<Key, Option<Plan>>,
}

// SAFETY: cuBLASLt's handles may be used from any thread; the owner allows one thread at a time.
unsafe impl Send for CublasLt {}

struct Plan {
    operation: Operation,
    weight: Matrix,
    x: Matrix,
    y: Matrix,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl CublasLt {
    /// A handle for the current context. `hopper` says whether the GPU has compute capability 9.0.
    pub(crate) fn new(hopper: bool) -> Result<Self> {
        Ok(Self { handle: result::create_handle().map_err(failed)?, hopper, plans: HashMap::new() })
    }

    /// Launches `y = x w^T + bias + residual` on `stream`. Returns `false` where cuBLASLt has no algorithm for it.
    ///
    /// # Safety
    /// The addresses are those of operands of the product's type and shapes on the handle's GPU, contiguous but for the rows of
    /// residual and result; `workspace` is that of [`WORKSPACE`] bytes, and all of them are used in the order of `stream`.
    pub(crate) unsafe fn launch(
        &mut self,
        product: Product,
        addresses: Addresses,
        workspace: u64,
        stream: *mut c_void,
    ) -> Result<bool> {
        // SAFETY: by the contract of this function.
        unsafe { self.run(product, addresses, None, workspace, stream) }
    }

    /// Like [`Self::launch`] for operands in e4m3, with the addresses of a scale in f32 for each row of `x` and each row of the
    /// weight. Bias, residual and result have the product's type. The tensor cores keep about 14 bits of a sum (`fast
    /// accumulation`): on an H200 the error with 5,120 channels is 0.0009 of the result, that of rounding the operands 0.021.
    ///
    /// # Safety
    /// See [`Self::launch`]; there are as many scales as rows.
    pub(crate) unsafe fn launch_e4m3(
        &mut self,
        product: Product,
        addresses: Addresses,
        scales: [u64; 2],
        workspace: u64,
        stream: *mut c_void,
    ) -> Result<bool> {
        // SAFETY: by the contract of this function.
        unsafe { self.run(product, addresses, Some(scales), workspace, stream) }
    }

    /// # Safety
    /// See [`Self::launch`] and [`Self::launch_e4m3`].
    unsafe fn run(
        &mut self,
        product: Product,
        addresses: Addresses,
        scales: Option<[u64; 2]>,
        workspace: u64,
        stream: *mut c_void,
    ) -> Result<bool> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let key = Key {
            product,
            bias: addresses.bias.is_some(),
            residual: addresses.residual.is_some(),
            alignment: addresses.alignment(),
            e4m3: scales.is_some(),
        };
        if !self.plans.contains_key(&key) {
            let plan = self.plan(key, addresses.bias, scales)?;
            self.plans.insert(key, plan);
        }
        let Some(Some(plan)) = self.plans.get(&key) else { return Ok(false) };
        if let Some(bias) = addresses.bias {
            plan.operation.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        if let Some(scales) = scales {
            plan.operation.set_scales(scales)?;
        }
        let (alpha, beta) = (1f32, if key.residual { 1f32 } else { 0f32 });
        let pointer = |address: u64| address as *const c_void;
        // SAFETY: the layouts describe the operands, which are valid by the contract; factors are read before the call
        // returns. Without a residual `beta` is 0, and the third matrix is not read.
        unsafe {
            result::matmul(
                self.handle,
                plan.operation.0,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                pointer(addresses.weight),
                plan.weight.0,
                pointer(addresses.x),
                plan.x.0,
                pointer(addresses.residual.unwrap_or(addresses.y)),
                plan.y.0,
                addresses.y as *mut c_void,
                plan.y.0,
                &raw const plan.algorithm,
                workspace as *mut c_void,
                WORKSPACE,
                stream.cast(),
            )
        }
        .map_err(failed)?;
        Ok(true)
    }

    fn plan(&self, key: Key, bias: Option<u64>, scales: Option<[u64; 2]>) -> Result<Option<Plan>> {
        use sys::cublasLtEpilogue_t as Epilogue;
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let Product { m, n, k, dtype, y_row, gelu } = key.product;
        let operation = Operation::new()?;
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &CUBLAS_OP_T)?;
        let epilogue = match (gelu, bias) {
            (false, None) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
            (false, Some(_)) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
            (true, None) => Epilogue::CUBLASLT_EPILOGUE_GELU,
            (true, Some(_)) => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
        };
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        if let Some(bias) = bias {
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        if let Some(scales) = scales {
            let by_row = sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F as i32;
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &by_row)?;
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &by_row)?;
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &1i8)?;
            operation.set_scales(scales)?;
        }
        let of_operands = if key.e4m3 { sys::cudaDataType_t::CUDA_R_8F_E4M3 } else { element(dtype) };
        let (weight, x) = (Matrix::new(of_operands, [k, n], k)?, Matrix::new(of_operands, [k, m], k)?);
        let y = Matrix::new(element(dtype), [n, m], y_row)?;
        let preference = Preference::new(key.alignment)?;
        let mut candidates = [const { MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit() }; 8];
        let mut found = 0;
        // SAFETY: all objects are alive, and at most as many candidates are written as the array has.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                operation.0,
                weight.0,
                x.0,
                y.0,
                y.0,
                preference.0,
                candidates.len() as i32,
                candidates.as_mut_ptr().cast(),
                &raw mut found,
            )
        };
        if status == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(None);
        }
        status.result().map_err(failed)?;
        // SAFETY: the call has written that many.
        let candidates = candidates[..found as usize].iter().map(|candidate| unsafe { candidate.assume_init_ref() });
        let usable: Vec<_> = candidates.filter(|candidate| candidate.state.result().is_ok()).collect();
        let first_fast =
            usable.iter().find(|candidate| !(self.hopper && !key.e4m3 && is_slow(tile(&candidate.algo), key)));
        let chosen = first_fast.or(usable.first());
        Ok(chosen.map(|chosen| Plan { operation, weight, x, y, algorithm: chosen.algo }))
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: the handle was created with this object and is not used after it.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Tiles that the heuristic of cuBLAS 13.1 returns first on an H200, and that were slower than its next candidate in
/// every such product of SD1.5 and SDXL, at 1 to 8 images and 512² to 1024²: 10 % of the time of all linear layers, up
/// to 60 % of one product. The names contain the tile's extent over `n` and over `m`.
fn is_slow(tile: u32, key: Key) -> bool {
    const TILE_64X512: u32 = 22;
    const TILE_128X160: u32 = 29;
    const TILES_168_AND_176: std::ops::RangeInclusive<u32> = 196..=203;
    match tile {
        TILE_64X512 => true,
        TILE_128X160 => key.residual,
        tile if TILES_168_AND_176.contains(&tile) => key.product.n < 2048, // most of a tile is unused in narrow results
        _ => false,
    }
}

/// The tile of an algorithm in the library's enumeration; 0, "undefined", if it reports none.
fn tile(algorithm: &sys::cublasLtMatmulAlgo_t) -> u32 {
    let (mut tile, mut written) = (0u32, 0usize);
    // SAFETY: the call writes at most four bytes through the pointer, and their number.
    let status = unsafe {
        sys::cublasLtMatmulAlgoConfigGetAttribute(
            algorithm,
            sys::cublasLtMatmulAlgoConfigAttributes_t::CUBLASLT_ALGO_CONFIG_TILE_ID,
            (&raw mut tile).cast(),
            size_of::<u32>(),
            &raw mut written,
        )
    };
    if status.result().is_ok() { tile } else { 0 }
}

/// The computation: f32 sums of products, with the first matrix transposed.
struct Operation(sys::cublasLtMatmulDesc_t);

impl Operation {
    fn new() -> Result<Self> {
        let (sums, factors) = (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F);
        Ok(Self(result::create_matmul_desc(sums, factors).map_err(failed)?))
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the value is copied during the call, with the size of its type.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, (&raw const *value).cast(), size_of::<T>()) }
            .map_err(failed)
    }

    /// The addresses of the scales of `x` and of the weight, which is the first matrix.
    fn set_scales(&self, [x, weight]: [u64; 2]) -> Result<()> {
        self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &weight)?;
        self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: it was created with this object and is not used after it.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// The library's name of a type.
fn element(dtype: DType) -> sys::cudaDataType_t {
    match dtype {
        DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        _ => sys::cudaDataType_t::CUDA_R_32F,
    }
}

/// A column-major matrix.
struct Matrix(sys::cublasLtMatrixLayout_t);

impl Matrix {
    /// Columns that are `column` elements apart.
    fn new(element: sys::cudaDataType_t, [rows, columns]: [usize; 2], column: usize) -> Result<Self> {
        Ok(Self(result::create_matrix_layout(element, rows as u64, columns as u64, column as i64).map_err(failed)?))
    }
}

impl Drop for Matrix {
    fn drop(&mut self) {
        // SAFETY: it was created with this object and is not used after it.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// The constraints of the heuristic.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(alignment: u32) -> Result<Self> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Self(result::create_matmul_pref().map_err(failed)?);
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE)?;
        // Partial sums are added in f32, never in the type of the result.
        let schemes = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes)?;
        for attribute in [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(attribute, &alignment)?;
        }
        Ok(preference)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the value is copied during the call, with the size of its type.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, (&raw const *value).cast(), size_of::<T>()) }
            .map_err(failed)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was created with this object and is not used after it.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

fn failed(error: CublasError) -> Error {
    match error.0 {
        sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => Error::LibraryMemory("cuBLASLt"),
        _ => Error::Driver(format!("cuBLASLt: {error:?}")),
    }
}
