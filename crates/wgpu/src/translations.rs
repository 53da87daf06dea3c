//! The kernels in the languages of all interfaces, checked without a GPU.
//!
//! Each file of `kernels` is a kernel, or a part that kernels have in common; there is no list that could lack one. A kernel is
//! written with every value of the constants that it reads and does not declare, and in every type. Kernels with tiles have those that
//! operators choose.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_core::DType;
use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ResourceBinding, ShaderStage, StorageAccess};

use crate::operators::tiled_kernels;
use crate::pipelines::{Constant, IMMEDIATES, Kernel};

/// Constants that are numbers, and values that operators choose. All others are true or false.
const NUMBERS: [(&str, &[u32]); 8] = [
    ("GROUP", &[16, 64, 256]),
    ("HEAD", &[40, 64, 160, 512]),
    ("KIND", &[0, 1, 2]),
    ("PART", &[5, 64]),
    ("PARTS", &[1, 3]),
    ("SHARE", &[16, 32, 64]),
    ("THREADS", &[64, 256]),
    ("TYPE", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]),
];
/// Elements of vectors.
const WIDTHS: [usize; 3] = [1, 2, 4];
/// Names of types of elements.
const TYPES: [&str; 3] = ["S", "X", "Y"];
/// Versions of SPIR-V for Vulkan 1.1 and 1.3, of MSL for macOS 11 and 13, and of HLSL.
const SPIR_V: [(u8, u8); 2] = [(1, 3), (1, 6)];
const MSL: [(u8, u8); 2] = [(2, 3), (3, 0)];
/// Version 5.1 has no f16.
const HLSL: [(hlsl::ShaderModel, DType); 3] = [
    (hlsl::ShaderModel::V5_1, DType::F32),
    (hlsl::ShaderModel::V6_2, DType::F32),
    (hlsl::ShaderModel::V6_2, DType::F16),
];
/// Bytes of workgroup memory that each GPU by Metal or DirectX 12 has.
const WORKGROUP_MEMORY: u32 = 32 << 10;

#[test]
fn kernels_are_translated_for_all_interfaces() {
    let sources = sources("src/kernels", "wgsl");
    let is_kernel = |text: &str| text.contains("@compute");
    let (kernels, parts): (BTreeMap<_, _>, BTreeMap<_, _>) = sources.into_iter().partition(|(_, text)| is_kernel(text));
    assert!(kernels.len() >= 10 && parts.contains_key("activations"), "{:?}", kernels.keys());
    let functions = functions();
    let mut used = BTreeSet::from(["activations"]);
    let pasted: Vec<&str> =
        tiled_kernels().into_iter().flat_map(|kernel| kernel.pasted).map(|[_, text]| text).collect();
    used.extend(parts.iter().filter(|(_, text)| pasted.contains(&text.as_str())).map(|(name, _)| name.as_str()));
    for (name, text) in &kernels {
        let (names, common): (Vec<&str>, Vec<&str>) = parts
            .iter()
            .filter(|(part, own)| *part != "activations" && is_part_of(part, own, name, text))
            .map(text_of)
            .unzip();
        used.extend(names);
        let variants = variants(leaked(name), leaked(&common.concat()), leaked(text), &functions);
        println!("{name}: {} variants", variants.len());
        variants.iter().for_each(check);
    }
    let unused: Vec<_> = parts.keys().filter(|part| !used.contains(part.as_str())).collect();
    assert!(unused.is_empty(), "no kernel calls a function of {unused:?}");
}

fn text_of<'a>((name, text): (&'a String, &'a String)) -> (&'a str, &'a str) {
    (name, text)
}

/// Kernels have sources that are part of the program.
fn leaked(text: &str) -> &'static str {
    text.to_string().leak()
}

/// The files of a folder of this crate with an extension, by their names without it.
fn sources(folder: &str, extension: &str) -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|found| found == extension));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    files.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_string(), read(&path))).collect()
}

/// The definitions of `function` in the sources of operators.
fn functions() -> Vec<&'static str> {
    let mut found = Vec::new();
    for text in sources("src/operators", "rs").values() {
        let after = text.split("\"fn function(").skip(1);
        let literals = after.map(|rest| rest.split("\\n\"").next().unwrap());
        found.extend(literals.map(|literal| leaked(&format!("fn function({literal}\n"))));
    }
    assert!(found.len() >= 10, "{found:?}");
    found
}

/// Whether a kernel calls a function of a part, or has its numbers there.
fn is_part_of(part: &str, text: &str, kernel: &str, source: &str) -> bool {
    let is_params = |text: &str| text.contains("struct Params");
    let family = |name: &str| name.split('_').next().map(str::to_string);
    let has_numbers = is_params(text) && !is_params(source) && family(part) == family(kernel);
    has_numbers || is_called(text, source)
}

/// Whether a kernel calls a function of a part.
fn is_called(part: &str, kernel: &str) -> bool {
    let names = part.split("\nfn ").skip(1).map(|rest| rest.split('(').next().unwrap());
    names.into_iter().any(|name| words(kernel).contains(name))
}

/// The words of a source without its comments.
fn words(text: &str) -> BTreeSet<&str> {
    let code = text.lines().map(|line| line.split("//").next().unwrap());
    code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')).collect()
}

/// A kernel with all values of its constants and types, and with each function.
fn variants(name: &'static str, common: &'static str, source: &'static str, functions: &[&'static str]) -> Vec<Kernel> {
    let all = format!("{common}{source}");
    let words = words(&all);
    let is_constant = |word: &&&str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let has_matrices = words.contains("MatrixA");
    let known: Vec<Kernel> = tiled_kernels().into_iter().filter(|kernel| kernel.name == name).collect();
    let is_tiled = !known.is_empty();
    let mut kernels = if is_tiled { known } else { vec![Kernel::new(name, source)] };
    kernels.iter_mut().for_each(|kernel| kernel.common = common);
    if words.contains("E") {
        kernels = each(&kernels, &WIDTHS, |kernel, width| kernel.width = Some(*width));
    }
    let simple = kernels.len();
    let chosen: Vec<&str> = kernels.iter().flat_map(|kernel| kernel.constants.iter().map(|(name, _)| *name)).collect();
    let declared = |word: &str| word == "WIDTH" || chosen.contains(&word) || all.contains(&format!("const {word}:"));
    for word in words.iter().filter(is_constant).filter(|word| !declared(word)) {
        let numbers = NUMBERS.iter().find(|(number, _)| number == word).map(|(_, values)| *values);
        let values: Vec<Constant> = match numbers {
            Some(values) => values.iter().map(|&value| Constant::U32(value)).collect(),
            None => [false, true].map(Constant::Bool).into(),
        };
        let word = leaked(word);
        let [first, others @ ..] = values.as_slice() else { panic!("{word} has no value") };
        // Kernels with tiles are long: each constant differs from its first value alone.
        let varied = if is_tiled { &kernels[..kernels.len().min(simple)] } else { &kernels[..] };
        let more = each(varied, others, |kernel, value| kernel.constants.push((word, *value)));
        kernels.iter_mut().for_each(|kernel| kernel.constants.push((word, *first)));
        kernels.extend(more);
    }
    // Drivers multiply cooperative matrices of f16 alone.
    let types: &[DType] = if has_matrices { &[DType::F16] } else { &[DType::F32, DType::F16] };
    for alias in TYPES.into_iter().filter(|alias| words.contains(alias) || (*alias == "S" && words.contains("E"))) {
        kernels = each(&kernels, types, |kernel, dtype| kernel.types.push((alias, *dtype)));
    }
    if words.contains("function") || words.contains("each") {
        let operands = if name == "binary" { 2 } else { 3 };
        let mut fitting = functions.iter().filter(|text| text.matches(": f32").count() == operands);
        // Functions know no constants: all but one are tried with one combination of those.
        let first = fitting.next().unwrap();
        let others: Vec<Kernel> = fitting.map(|function| kernels[0].clone().function(function)).collect();
        kernels = kernels.into_iter().map(|kernel| kernel.function(first)).chain(others).collect();
    }
    kernels
}

/// Each kernel with each value.
fn each<T>(kernels: &[Kernel], values: &[T], set: impl Fn(&mut Kernel, &T)) -> Vec<Kernel> {
    let mut all = Vec::new();
    for kernel in kernels {
        for value in values {
            let mut kernel = kernel.clone();
            set(&mut kernel, value);
            all.push(kernel);
        }
    }
    all
}

fn check(kernel: &Kernel) {
    let text = kernel.text().unwrap();
    let named = format!("{} with {:?} {:?} {:?}", kernel.name, kernel.types, kernel.constants, kernel.function);
    let refused = |error: String| -> String { format!("{named}: {error}") };
    let module = naga::front::wgsl::parse_str(&text);
    let module = module.map_err(|error| refused(error.emit_to_string(&text))).unwrap_or_else(|error| panic!("{error}"));
    // Those of the features that `Gpu::open` asks for.
    let mut capabilities = Capabilities::IMMEDIATES | Capabilities::SHADER_FLOAT16;
    capabilities.set(Capabilities::COOPERATIVE_MATRIX | Capabilities::SUBGROUP, kernel.matrices.is_some());
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    let info = validator.validate(&module);
    let info = info.map_err(|error| refused(error.emit_to_string(&text))).unwrap_or_else(|error| panic!("{error}"));
    let bindings = check_resources(kernel, &module, &named);
    for version in SPIR_V {
        let words = spir_v(&module, &info, version).map_err(refused).unwrap();
        assert!(words.len() > 100, "{named}");
    }
    // Kernels with cooperative matrices are chosen by Vulkan alone. HLSL has none at all.
    if kernel.matrices.is_some() {
        return;
    }
    for version in MSL {
        let text = metal(&module, &info, version, bindings).map_err(refused).unwrap();
        assert!(text.contains("kernel void main_("), "{named}: {text}");
    }
    let has_f16 = kernel.types.iter().any(|(_, dtype)| *dtype == DType::F16);
    for (model, dtype) in HLSL.into_iter().filter(|(_, dtype)| (*dtype == DType::F16) == has_f16) {
        let text = direct_x(&module, &info, model, bindings).map_err(refused).unwrap();
        let has_half = ["half", "half2", "half4"].iter().any(|name| words(&text).contains(name));
        assert!(text.contains("[numthreads(") && has_half == (dtype == DType::F16), "{named}: {text}");
    }
}

/// The number of bindings, which are those that `Pipelines` makes: the last one is written. A kernel need not use all.
fn check_resources(kernel: &Kernel, module: &Module, named: &str) -> u32 {
    let size = |global: &naga::GlobalVariable| module.types[global.ty].inner.size(module.to_ctx());
    let mut bindings = BTreeMap::new();
    let mut memory = 0;
    for (_, global) in module.global_variables.iter() {
        match global.space {
            AddressSpace::Storage { access } => {
                let ResourceBinding { group, binding } = global.binding.unwrap();
                assert_eq!(group, 0, "{named}");
                bindings.insert(binding, access.contains(StorageAccess::STORE));
            }
            AddressSpace::Immediate => assert!(size(global) <= IMMEDIATES, "{named}: {} bytes", size(global)),
            AddressSpace::WorkGroup => memory += size(global),
            AddressSpace::Private => {}
            other => panic!("{named}: a global in {other:?}"),
        }
    }
    let count = bindings.keys().last().map_or(0, |last| last + 1);
    let are_as_made = bindings.iter().all(|(&binding, &is_written)| is_written == (binding + 1 == count));
    assert!(are_as_made, "{named}: whether each binding is written: {bindings:?}");
    assert!(kernel.matrices.is_some() || memory <= WORKGROUP_MEMORY, "{named}: {memory} bytes of workgroup memory");
    let [entry] = module.entry_points.as_slice() else { panic!("{named}: one entry point is expected") };
    assert_eq!((entry.name.as_str(), entry.stage), ("main", ShaderStage::Compute), "{named}");
    assert!(entry.workgroup_size.iter().product::<u32>() <= 1024, "{named}");
    count
}

fn spir_v(module: &Module, info: &ModuleInfo, version: (u8, u8)) -> Result<Vec<u32>, String> {
    let options = spv::Options { lang_version: version, ..spv::Options::default() };
    spv::write_vec(module, info, &options, None).map_err(|error| format!("SPIR-V {version:?}: {error}"))
}

fn metal(module: &Module, info: &ModuleInfo, version: (u8, u8), bindings: u32) -> Result<String, String> {
    let target = |binding| msl::BindTarget {
        buffer: Some(binding as u8 + 1),
        mutable: binding + 1 == bindings,
        ..msl::BindTarget::default()
    };
    let resources = (0..bindings).map(|binding| (ResourceBinding { group: 0, binding }, target(binding))).collect();
    let sizes_buffer = Some(bindings as u8 + 1);
    let resources = msl::EntryPointResources { resources, immediates_buffer: Some(0), sizes_buffer };
    let options = msl::Options {
        lang_version: version,
        per_entry_point_map: BTreeMap::from([("main".to_string(), resources)]),
        fake_missing_bindings: false,
        zero_initialize_workgroup_memory: false,
        ..msl::Options::default()
    };
    let written = msl::write_string(module, info, &options, &msl::PipelineOptions::default());
    let (text, translation) = written.map_err(|error| format!("MSL {version:?}: {error}"))?;
    let entries: Result<Vec<String>, _> = translation.entry_point_names.into_iter().collect();
    entries.map_err(|error| format!("MSL {version:?}: {error}"))?;
    Ok(text)
}

fn direct_x(module: &Module, info: &ModuleInfo, model: hlsl::ShaderModel, bindings: u32) -> Result<String, String> {
    let target = |register| hlsl::BindTarget { register, ..hlsl::BindTarget::default() };
    let binding_map = (0..bindings).map(|binding| (ResourceBinding { group: 0, binding }, target(binding))).collect();
    let options = hlsl::Options {
        shader_model: model,
        binding_map,
        fake_missing_bindings: false,
        immediates_target: Some(target(0)),
        special_constants_binding: Some(target(1)),
        ..hlsl::Options::default()
    };
    let mut text = String::new();
    let pipeline = hlsl::PipelineOptions::default();
    let written = hlsl::Writer::new(&mut text, &options, &pipeline).write(module, info, None);
    let reflection = written.map_err(|error| format!("HLSL {model:?}: {error}"))?;
    let entries: Result<Vec<String>, _> = reflection.entry_point_names.into_iter().collect();
    entries.map_err(|error| format!("HLSL {model:?}: {error}"))?;
    Ok(text)
}
