//! `kiln` with a `kiln-cuda` in the same folder, here a script.

use std::os::unix::fs::PermissionsExt;

use crate::sandbox::{Run, Sandbox};

/// Prints its arguments and fails with its own status.
const FAKE: &str = "[ \"$1\" = --version ] && echo \"kiln $VERSION\" && exit; echo \"fake: $*\"; exit 7";

/// `kiln` in a sandbox, with a script as its `kiln-cuda`.
struct Pair(Sandbox);

impl Pair {
    fn new(script: &str) -> Self {
        let sandbox = Sandbox::new();
        // A separate process copies it: a file that this process has open for writing cannot be executed by its
        // children.
        let make = format!(
            "ln \"$1\" kiln 2>/dev/null || cp \"$1\" kiln\n\
             cat >kiln-cuda <<'END' && chmod 755 kiln-cuda\n#!/bin/sh\nVERSION={}\n{script}\nEND",
            env!("CARGO_PKG_VERSION")
        );
        sandbox.shell_kiln::<&str>(&make, &[]).succeeds();
        Self(sandbox)
    }

    /// Runs `kiln` with `args` in shell syntax, after assignments to environment `variables`.
    fn run(&self, variables: &str, args: &str) -> Run {
        self.0.shell_kiln::<&str>(&format!("unset KILN_NO_HANDOVER; {variables} ./kiln {args}"), &[])
    }
}

#[test]
fn kiln_cuda_gets_the_arguments_and_sets_the_status() {
    let pair = Pair::new(FAKE);
    for args in ["txt2img 'an apple' --steps 2", "bench emoji --device cuda:1", "devices --json"] {
        let run = pair.run("", args);
        assert_eq!((run.status.code(), run.stderr.as_str()), (Some(7), ""), "{run}");
        assert_eq!(run.stdout, format!("fake: {}\n", args.replace('\'', "")), "{run}");
    }
    let run = pair.run("", "devices -v");
    assert!(run.stderr.contains("running") && run.stderr.contains("kiln-cuda"), "{run}");
}

#[test]
fn commands_without_gpu_do_not_run_kiln_cuda() {
    let pair = Pair::new(FAKE);
    for args in ["--version", "--help", "man", "completions bash"] {
        assert!(!pair.run("", args).succeeds().stdout.contains("fake: "));
    }
    let run = pair.run("", "bench --device cpu --stages text --runs 1").succeeds();
    assert!(run.stdout.contains("77 tokens"), "{run}");
    pair.run("", "bench --device cpu --runs 0").refused(&["--runs is 0"]);
}

#[test]
fn a_variable_prevents_the_call() {
    let pair = Pair::new(FAKE);
    let run = pair.run("KILN_NO_HANDOVER=1", "devices").succeeds();
    assert!(run.stdout.starts_with("CPU") && run.stderr.is_empty(), "{run}");
    assert_eq!(pair.run("KILN_NO_HANDOVER=0", "devices").status.code(), Some(7));
}

#[test]
fn a_missing_driver_is_not_a_warning() {
    let missing = "error while loading shared libraries: libcuda.so.1: cannot open shared object file";
    let pair = Pair::new(&format!("echo '{missing}' >&2; exit 127"));
    let run = pair.run("", "devices").succeeds();
    assert!(run.stdout.starts_with("CPU") && run.stderr.is_empty(), "{run}");
    let run = pair.run("", "devices -v").succeeds();
    assert!(run.stderr.contains("does not start without a driver") && run.stderr.contains(missing), "{run}");
}

#[test]
fn a_failed_start_is_a_warning_only() {
    let missing = "echo 'libcublas.so.13: cannot open shared object file' >&2; exit 127";
    for (script, expected) in [
        (missing, "libcublas.so.13: cannot open shared object file"),
        ("kill -SEGV $$", "no message (signal: 11"),
        ("echo kiln 0.0.0", "its version is \"kiln 0.0.0\", expected \"kiln "),
    ] {
        let pair = Pair::new(script);
        let run = pair.run("", "devices").succeeds();
        assert!(run.stdout.starts_with("CPU"), "{run}");
        assert!(run.stderr.contains("continuing without CUDA") && run.stderr.contains(expected), "{run}");
    }
    let pair = Pair::new(FAKE);
    std::fs::set_permissions(pair.0.path("kiln-cuda"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let run = pair.run("", "devices").succeeds();
    assert!(run.stderr.to_lowercase().contains("permission denied"), "{run}");
}

#[test]
fn two_names_of_one_program_do_not_loop() {
    let pair = Pair::new("");
    std::fs::remove_file(pair.0.path("kiln-cuda")).unwrap();
    std::os::unix::fs::symlink(pair.0.path("kiln"), pair.0.path("kiln-cuda")).unwrap();
    assert!(pair.run("", "devices").succeeds().stdout.starts_with("CPU"));
}
