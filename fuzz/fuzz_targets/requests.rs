//! The body of a request to the server, as each of its APIs reads it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| kiln_serve::read_request(body));
