//! Kernels that are compiled ahead, because WGSL lacks what they use: `kernels/workgroup`, which `scripts/spirv.sh` compiles.

use std::collections::HashMap;

use kiln_ops::{Error, Result};

use crate::pipelines::Constant;

/// Words before the first instruction of a module.
const HEADER: usize = 5;
/// Instructions, by their numbers in the specification of SPIR-V.
const NAME: u32 = 5;
const DECORATE: u32 = 71;
const CONSTANT_TRUE: u32 = 48;
const CONSTANT_FALSE: u32 = 49;
const CONSTANT: u32 = 50;
const EXECUTION_MODE: u32 = 16;
const EXECUTION_MODE_ID: u32 = 331;
/// Sizes of workgroups, by numbers and by constants.
const LOCAL_SIZE: u32 = 17;
const LOCAL_SIZE_ID: u32 = 38;
/// The decoration of a constant that has a number, by which it gets its value.
const SPECIALIZATION: u32 = 1;

/// The module of a kernel with the values of its constants, which have the names of those in its source.
///
/// # Errors
/// [`Error::Backend`] if a constant of the module has no value.
pub(crate) fn specialized(kernel: &str, bytes: &[u8], constants: &[(&'static str, Constant)]) -> Result<Vec<u32>> {
    let mut words: Vec<u32> = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let numbers = numbers(&words);
    let mut values = HashMap::new();
    for (id, name) in names(&words) {
        let Some(number) = numbers.get(&id) else { continue };
        let value = constants.iter().find(|(constant, _)| *constant == name).map(|(_, value)| *value);
        let missing = || Error::Backend(format!("the kernel {kernel} has no value for {name}"));
        values.insert(*number, value.ok_or_else(missing)?);
    }
    for at in instructions(&words) {
        let [first, _, id, ..] = words[at..] else { continue };
        if (first & 0xffff, id) == (EXECUTION_MODE_ID, LOCAL_SIZE_ID) {
            size_by_numbers(&mut words[at..], &numbers, &values);
            continue;
        }
        let Some(value) = numbers.get(&id).and_then(|number| values.get(number)) else { continue };
        match (first & 0xffff, value) {
            (CONSTANT_TRUE | CONSTANT_FALSE, Constant::Bool(value)) => {
                words[at] = (first & !0xffff) | if *value { CONSTANT_TRUE } else { CONSTANT_FALSE };
            }
            (CONSTANT, Constant::U32(value)) => words[at + 3] = *value,
            _ => {}
        }
    }
    Ok(words)
}

/// Writes the size of workgroups by numbers, threads in the first dimension alone: sizes by constants need `maintenance4`, a feature of
/// drivers that wgpu leaves off. Both instructions have six words.
fn size_by_numbers(words: &mut [u32], numbers: &HashMap<u32, u32>, values: &HashMap<u32, Constant>) {
    if let [first, _, mode, x, y, z, ..] = words {
        let threads = numbers.get(x).and_then(|number| values.get(number));
        if let Some(Constant::U32(threads)) = threads {
            *first = (*first & !0xffff) | EXECUTION_MODE;
            (*mode, *x, *y, *z) = (LOCAL_SIZE, *threads, 1, 1);
        }
    }
}

/// The number of each constant, by its identifier. Several constants can have one number: the size of workgroups has that of a constant
/// with a name.
fn numbers(words: &[u32]) -> HashMap<u32, u32> {
    let decoration = |at: usize| match words[at..] {
        [first, id, SPECIALIZATION, number, ..] if first & 0xffff == DECORATE => Some((id, number)),
        _ => None,
    };
    instructions(words).into_iter().filter_map(decoration).collect()
}

/// The identifiers that have names.
fn names(words: &[u32]) -> Vec<(u32, String)> {
    let name = |at: usize| {
        let length = (words[at] >> 16) as usize;
        let (id, text) = words.get(at + 1..at + length)?.split_first()?;
        (words[at] & 0xffff == NAME).then(|| (*id, text_of(text)))
    };
    instructions(words).into_iter().filter_map(name).collect()
}

/// The text of words, which ends with a zero.
fn text_of(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The places of all instructions.
fn instructions(words: &[u32]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = HEADER;
    while let Some(length) = words.get(at).map(|first| (first >> 16) as usize).filter(|length| *length > 0) {
        found.push(at);
        at += length;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::workgroup_kernels;

    /// `OpSource` and `OpSourceContinued`.
    const SOURCE: [u32; 2] = [3, 2];

    /// The source that a module has in it.
    fn source(words: &[u32]) -> String {
        let mut text = String::new();
        for at in instructions(words) {
            let length = (words[at] >> 16) as usize;
            // The language, its version and the file are before the text.
            let before = match words[at] & 0xffff {
                number if number == SOURCE[0] => 4,
                number if number == SOURCE[1] => 1,
                _ => continue,
            };
            text.push_str(&text_of(words.get(at + before..at + length).unwrap_or_default()));
        }
        text
    }

    #[test]
    fn modules_are_compiled_from_the_sources() {
        let kernels = workgroup_kernels();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/kernels/workgroup");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let mut sources: Vec<_> = files.filter(|path| path.extension().is_some_and(|found| found == "comp")).collect();
        sources.sort();
        assert!(!sources.is_empty());
        for path in sources {
            let bytes = std::fs::read(path.with_extension("spv")).unwrap();
            let kernel =
                kernels.iter().find(|kernel| kernel.binary == Some(bytes.as_slice())).expect("a kernel of each file");
            let words = specialized(kernel.name, &bytes, &kernel.constants).unwrap();
            assert_eq!(source(&words), std::fs::read_to_string(&path).unwrap(), "run scripts/spirv.sh");
        }
    }

    #[test]
    fn constants_get_their_values() {
        let kernel = workgroup_kernels().swap_remove(0);
        let bytes = kernel.binary.unwrap();
        let other = |name: &str, value| {
            let constants =
                kernel.constants.iter().map(|(found, old)| (*found, if *found == name { value } else { *old }));
            specialized(kernel.name, bytes, &constants.collect::<Vec<_>>()).unwrap()
        };
        let differences = |a: &[u32], b: &[u32]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        let usual = specialized(kernel.name, bytes, &kernel.constants).unwrap();
        // The number of threads is the size of workgroups, too.
        assert!(differences(&usual, &other("THREADS", Constant::U32(31))) >= 2);
        assert_eq!(differences(&usual, &other("DEPTH", Constant::U32(31))), 1);
        let flipped = matches!(
            kernel.constants.iter().find(|(name, _)| *name == "CONVOLUTION"),
            Some((_, Constant::Bool(false)))
        );
        assert_eq!(differences(&usual, &other("CONVOLUTION", Constant::Bool(flipped))), 1);
        let without: Vec<_> = kernel.constants.iter().filter(|(name, _)| *name != "DEPTH").copied().collect();
        let error = specialized(kernel.name, bytes, &without).unwrap_err().to_string();
        assert!(error.contains("has no value for DEPTH"), "{error}");
    }
}
