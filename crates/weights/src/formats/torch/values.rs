//! The values and names that a pickle of `torch.save` may contain.

use safetensors::Dtype;

/// A value of a pickle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// An integer of more than 64 bits, little-endian.
    Long(&'a [u8]),
    Float(f64),
    Text(&'a str),
    Bytes,
    /// An index into [`Machine::lists`].
    Tuple(usize),
    /// An index into [`Machine::lists`].
    List(usize),
    /// An index into [`Machine::dicts`].
    Dict(usize),
    Global(Global),
    /// An index into [`Machine::storages`].
    Storage(usize),
    /// An index into [`Machine::tensors`].
    Tensor(usize),
    /// An object without weights.
    Opaque,
}

/// The names that a pickle may contain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Global {
    Dict,
    List,
    RebuildTensor,
    RebuildParameter,
    Storage(Dtype),
    /// Classes and functions that checkpoints contain and that hold no weights. They are never called. Their objects
    /// are never read.
    Inert,
}

/// The allowed names: module, names, and their meaning here.
const GLOBALS: &[(&str, &[&str], Global)] = &[
    ("collections", &["OrderedDict", "defaultdict"], Global::Dict),
    ("builtins", &["dict"], Global::Dict),
    ("__builtin__", &["dict"], Global::Dict),
    ("builtins", &["list", "set", "frozenset", "tuple"], Global::List),
    ("__builtin__", &["list", "set", "frozenset", "tuple"], Global::List),
    ("torch._utils", &["_rebuild_tensor", "_rebuild_tensor_v2"], Global::RebuildTensor),
    ("torch._utils", &["_rebuild_parameter", "_rebuild_parameter_with_state"], Global::RebuildParameter),
    ("torch", &["DoubleStorage"], Global::Storage(Dtype::F64)),
    ("torch", &["FloatStorage"], Global::Storage(Dtype::F32)),
    ("torch", &["HalfStorage"], Global::Storage(Dtype::F16)),
    ("torch", &["BFloat16Storage"], Global::Storage(Dtype::BF16)),
    ("torch", &["LongStorage"], Global::Storage(Dtype::I64)),
    ("torch", &["IntStorage"], Global::Storage(Dtype::I32)),
    ("torch", &["ShortStorage"], Global::Storage(Dtype::I16)),
    ("torch", &["CharStorage"], Global::Storage(Dtype::I8)),
    ("torch", &["ByteStorage"], Global::Storage(Dtype::U8)),
    ("torch", &["BoolStorage"], Global::Storage(Dtype::BOOL)),
    ("torch", &["Size", "device", "float64", "float32", "float16", "bfloat16", "int64"], Global::Inert),
    ("torch.nn.modules.container", &["ParameterDict"], Global::Inert),
    ("numpy.core.multiarray", &["scalar"], Global::Inert),
    ("numpy._core.multiarray", &["scalar"], Global::Inert),
    ("numpy", &["dtype"], Global::Inert),
    ("_codecs", &["encode"], Global::Inert),
    // PyTorch Lightning leaves these in the official files of Stable Diffusion 1.
    ("pytorch_lightning.callbacks.model_checkpoint", &["ModelCheckpoint"], Global::Inert),
    ("pytorch_lightning.callbacks", &["ModelCheckpoint"], Global::Inert),
    ("pytorch_lightning.utilities.parsing", &["AttributeDict"], Global::Dict),
    ("argparse", &["Namespace"], Global::Inert),
];

/// A storage that a pickle refers to: an entry of the archive, or a section at the end of an old file.
#[derive(Debug, Clone)]
pub(super) struct Storage<'a> {
    pub(super) dtype: Dtype,
    pub(super) key: &'a str,
    /// The number of elements.
    pub(super) length: u64,
}

/// A view into a storage, in units of elements.
#[derive(Debug, Clone)]
pub(super) struct TensorView {
    pub(super) storage: usize,
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// The meaning of a name, if it is on the list.
pub(super) fn global(module: &str, name: &str) -> Result<Global, String> {
    let found = GLOBALS.iter().find(|(m, names, _)| *m == module && names.contains(&name));
    found.map(|&(_, _, global)| global).ok_or_else(|| {
        let plain = |text: &str| text.chars().filter(|c| c.is_ascii_graphic()).take(80).collect::<String>();
        format!(
            "is a pickle that asks for `{}.{}`, which weights do not need: refused, and no code was run. If you trust \
             the file, save its weights as .safetensors",
            plain(module),
            plain(name)
        )
    })
}
