//! Replaces `cuda.rs` in builds without CUDA, in which candle reports no such error.

pub(super) fn is_out_of_memory(_error: &(dyn std::error::Error + 'static)) -> bool {
    false
}
