//! A file of torch.save, with or without an archive around its pickle.
#![no_main]

use kiln_weights::TorchFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| kiln_fuzz::open_and_read(data, TorchFile::open));
