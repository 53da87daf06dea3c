//! Kernels with their constants.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use candle_core::DType;
use kiln_ops::{Error, Result};
use parking_lot::Mutex;

use crate::compiler::{Code, Compiler, Job, Layout, Pipeline};
use crate::kernel_store::StoredKernels;
use crate::spirv::specialized;
use crate::unroll::unroll;

/// A kernel with its constants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    /// A part that kernels have in common; empty if there is none.
    pub(crate) common: &'static str,
    pub(crate) source: &'static str,
    /// Names of types in the source, and their types.
    pub(crate) types: Vec<(&'static str, DType)>,
    /// Constants of the source.
    pub(crate) constants: Vec<(&'static str, Constant)>,
    /// Rows and columns of the cooperative matrices that it multiplies.
    pub(crate) matrices: Option<usize>,
    /// The definition of `function(x, a, b)`, for kernels that call it.
    pub(crate) function: Option<&'static str>,
    /// Marks in the source, and the texts that take their places.
    pub(crate) pasted: Vec<[&'static str; 2]>,
    /// Elements of a vector, for kernels that compute with vectors of any size.
    pub(crate) width: Option<usize>,
    /// A module of SPIR-V in place of the source.
    pub(crate) binary: Option<&'static [u8]>,
}

/// The value of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Bool(bool),
    U32(u32),
}

impl Kernel {
    pub(crate) fn new(name: &'static str, source: &'static str) -> Self {
        Self {
            name,
            common: "",
            source,
            types: Vec::new(),
            constants: Vec::new(),
            matrices: None,
            function: None,
            pasted: Vec::new(),
            width: None,
            binary: None,
        }
    }

    /// A kernel that is compiled ahead, by matrices of a workgroup.
    pub(crate) fn compiled(name: &'static str, binary: &'static [u8]) -> Self {
        Self { binary: Some(binary), ..Self::new(name, "") }
    }

    /// With a part that kernels have in common.
    pub(crate) fn after(self, common: &'static str) -> Self {
        Self { common, ..self }
    }

    pub(crate) fn of(mut self, name: &'static str, dtype: DType) -> Self {
        self.types.push((name, dtype));
        self
    }

    pub(crate) fn when(mut self, name: &'static str, value: bool) -> Self {
        self.constants.push((name, Constant::Bool(value)));
        self
    }

    pub(crate) fn with(mut self, name: &'static str, value: usize) -> Self {
        self.constants.push((name, Constant::U32(value as u32)));
        self
    }

    /// With cooperative matrices of so many rows and columns.
    pub(crate) fn with_matrices(self, side: usize) -> Self {
        Self { matrices: Some(side), ..self }.with("SIDE", side)
    }

    /// Without cooperative matrices.
    pub(crate) fn without_matrices(self) -> Self {
        Self { matrices: None, ..self }
    }

    pub(crate) fn function(self, definition: &'static str) -> Self {
        Self { function: Some(definition), ..self }
    }

    /// With a text in place of a mark: code for which a function would need pointers to all arrays of its caller.
    pub(crate) fn paste(mut self, mark: &'static str, text: &'static str) -> Self {
        self.pasted.push([mark, text]);
        self
    }

    /// With vectors of `width` elements, 1, 2 or 4, of the type `S`.
    pub(crate) fn vectors(self, width: usize) -> Self {
        Self { width: Some(width), ..self }
    }

    /// The whole source.
    pub(crate) fn text(&self) -> Result<String> {
        let mut text = String::new();
        let has_f16 = self.types.iter().any(|(_, dtype)| *dtype == DType::F16);
        text.push_str(if has_f16 { "enable f16;\n" } else { "" });
        text.push_str(if self.matrices.is_some() { "enable wgpu_cooperative_matrix;\n" } else { "" });
        for (name, dtype) in &self.types {
            let _ = writeln!(text, "alias {name} = {};", type_name(self.name, *dtype)?);
        }
        if let Some(side) = self.matrices {
            for (role, dtype) in [("A", "f16"), ("B", "f16"), ("C", "f32")] {
                let _ = writeln!(text, "alias Matrix{role} = coop_mat{side}x{side}<{dtype}, {role}>;");
            }
        }
        for (name, value) in &self.constants {
            let _ = match value {
                Constant::Bool(value) => writeln!(text, "const {name}: bool = {value};"),
                Constant::U32(value) => writeln!(text, "const {name}: u32 = {value}u;"),
            };
        }
        if let Some(function) = self.function {
            text.push_str(include_str!("kernels/activations.wgsl"));
            text.push_str(function);
        }
        if let Some(width) = self.width {
            text.push_str(&vectors(width, self.function.is_some()));
        }
        text.push_str(self.common);
        let pasted = |source: String, [mark, text]: &[&str; 2]| source.replace(mark, text);
        text.push_str(&self.pasted.iter().fold(self.source.to_string(), pasted));
        let count = |name: &str| {
            self.constants.iter().find_map(|(found, value)| match value {
                Constant::U32(value) if *found == name => Some(*value),
                _ => None,
            })
        };
        unroll(self.name, &text, &count)
    }
}

/// Types and functions of vectors of `width` elements: `E` in memory, `F` in f32, the sum `across` one, and `function` for `each`
/// element.
fn vectors(width: usize, has_function: bool) -> String {
    let letters = ["x", "y", "z", "w"].into_iter().take(width);
    let (vector, float) = match width {
        1 => ("S".into(), "f32".into()),
        _ => (format!("vec{width}<S>"), format!("vec{width}f")),
    };
    let parts: Vec<String> =
        if width == 1 { vec!["v".into()] } else { letters.map(|letter| format!("v.{letter}")).collect() };
    let mut text = format!("alias E = {vector};\nalias F = {float};\nconst WIDTH: u32 = {width}u;\n");
    let _ = writeln!(text, "fn across(v: F) -> f32 {{ return {}; }}", parts.join(" + "));
    if has_function {
        let calls: Vec<String> = parts.iter().map(|part| format!("function({part}, 0.0, 0.0)")).collect();
        let _ = writeln!(text, "fn each(v: F) -> F {{ return F({}); }}", calls.join(", "));
    }
    text
}

fn type_name(kernel: &str, dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F32 => Ok("f32"),
        DType::F16 => Ok("f16"),
        other => {
            let message = format!("{kernel}: this GPU computes with f32 and f16, found {}", other.as_str());
            Err(Error::Backend(message))
        }
    }
}

/// The kernels that have been compiled, or are being compiled.
#[derive(Debug)]
pub(crate) struct Pipelines {
    compiler: Arc<Compiler>,
    known: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
    /// By the number of bindings.
    layouts: Mutex<HashMap<usize, Arc<Layout>>>,
}

/// Bytes of the numbers of a call.
pub(crate) const IMMEDIATES: u32 = 128;

impl Pipelines {
    pub(crate) fn new(device: &wgpu::Device, stored: Option<StoredKernels>) -> Self {
        let compiler = Arc::new(Compiler::new(device.clone(), stored));
        Self { compiler, known: Mutex::default(), layouts: Mutex::default() }
    }

    /// Keeps new kernels for the next process.
    pub(crate) fn save(&self) {
        self.compiler.save();
    }

    /// The kernel, which has `bindings` buffers and writes the last one. A new one is compiled by another thread.
    pub(crate) fn get(&self, kernel: Kernel, bindings: usize) -> Result<Arc<Pipeline>> {
        if let Some(found) = self.known.lock().get(&kernel) {
            return Ok(found.clone());
        }
        let code = match kernel.binary {
            Some(binary) => Code::SpirV(specialized(kernel.name, binary, &kernel.constants)?),
            None => Code::Wgsl(kernel.text()?),
        };
        let pipeline = Arc::new(Pipeline::new(self.layout(bindings)));
        self.known.lock().insert(kernel.clone(), pipeline.clone());
        self.compiler.add(Job { kernel: kernel.name, code, pipeline: pipeline.clone() });
        Ok(pipeline)
    }

    fn layout(&self, bindings: usize) -> Arc<Layout> {
        let make = || {
            let entry = |binding: usize| wgpu::BindGroupLayoutEntry {
                binding: binding as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: binding + 1 < bindings },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            };
            let entries: Vec<_> = (0..bindings).map(entry).collect();
            let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
            let bindings = self.compiler.device().create_bind_group_layout(&descriptor);
            let pipeline = self.compiler.device().create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&bindings)],
                immediate_size: IMMEDIATES,
            });
            Arc::new(Layout { bindings, whole: pipeline })
        };
        self.layouts.lock().entry(bindings).or_insert_with(make).clone()
    }
}

impl Drop for Pipelines {
    /// Waits for the threads, which would use the driver while the process ends.
    fn drop(&mut self) {
        for pipeline in self.known.get_mut().values() {
            let _ = pipeline.compiled();
        }
    }
}
