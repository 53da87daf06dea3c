//! Autoencoders beyond parity. Separate programs are the tests that count the memory of the process, and `parity`.

mod frames;
mod patches;
mod taesd;
