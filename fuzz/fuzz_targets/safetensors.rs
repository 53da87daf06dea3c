//! A safetensors header.
#![no_main]

use kiln_weights::SafetensorsFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| kiln_fuzz::open_and_read(data, SafetensorsFile::open));
