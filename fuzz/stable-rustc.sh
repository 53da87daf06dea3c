#!/usr/bin/env bash
# A RUSTC_WRAPPER that builds the targets with a stable compiler and without cargo-fuzz. It adds libFuzzer's coverage,
# assertions and overflow checks to the packages of this repository. It does not instrument their dependencies.
rustc=$1
shift
case "${CARGO_PKG_NAME:-} $*" in
*"--crate-name build_script"*) ;;
kiln-*)
    exec "$rustc" "$@" --cfg fuzzing -Cdebug-assertions=on -Coverflow-checks=on -Cpasses=sancov-module \
        -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
esac
exec "$rustc" "$@"
