//! Files and streams that cannot be written or read: locked folders, full disks, closed streams, FIFOs, terminals.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kiln_testkit::fixtures;

use crate::images;
use crate::models::ModelCopy;
use crate::sandbox::Sandbox;

/// Root may write to read-only folders. Without these capabilities it may not.
const AS_A_USER: &str = "exec setpriv --bounding-set=-dac_override,-dac_read_search \"$@\"";

#[test]
fn a_read_only_folder_is_refused_before_the_model_is_loaded() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("locked");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    let is_root = fs::write(folder.join("probe"), "").is_ok();
    if is_root {
        fs::remove_file(folder.join("probe")).unwrap();
    }
    let denied = |args: &[&str], path: &str| {
        let args = [&["an apple"], args].concat();
        let run = if is_root { sandbox.shell(AS_A_USER, &args) } else { sandbox.txt2img(&args) };
        let run = run.fails(1, &["cannot write ", path, "Permission denied"]);
        assert!(run.stderr.starts_with("error: "), "{run}");
    };
    denied(&["-o", "locked/apple.png"], "locked/apple.png");
    denied(&["-o", "locked"], "locked/kiln-0001-");
    denied(&["--latents-out", "locked/apple.safetensors"], "locked/apple.safetensors");
    assert_eq!(sandbox.names(), ["locked"]);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

/// A file that exceeds a size limit fails like one on a full disk: the first bytes are written, the others are not.
const FULL_DISK: &str = "ulimit -f 1; trap '' XFSZ; exec \"$@\"";

#[test]
fn a_full_disk_leaves_no_image() {
    let sandbox = Sandbox::new();
    sandbox.shell(FULL_DISK, &["an apple", "-o", "apple.png"]).fails(1, &["cannot write ", "apple.png: "]);
    sandbox.shell(FULL_DISK, &["an apple", "-b", "3", "-s", "7"]).fails(1, &["cannot write ./kiln-0001-7.png: "]);
    assert!(sandbox.names().is_empty(), "{:?}", sandbox.names());

    fs::write(sandbox.path("apple.png"), "old").unwrap();
    let run = sandbox.shell(FULL_DISK, &["an apple", "-o", "apple.png", "--overwrite"]);
    run.fails(1, &["cannot write ", "apple.png: "]);
    assert_eq!(fs::read(sandbox.path("apple.png")).unwrap(), b"old");
    assert_eq!(sandbox.names(), ["apple.png"]);
}

/// The images fit, the latents of all of them do not.
#[test]
fn a_full_disk_leaves_no_latents() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("latents.safetensors"), "old").unwrap();
    let files = ["an apple", "-o", "{index}.png", "--latents-out", "latents.safetensors"];
    let size = ["-W", "32", "-H", "32", "-b", "40"]; // 3 KB an image; 10 KB of latents
    let run = sandbox.shell("ulimit -f 8; trap '' XFSZ; exec \"$@\"", &[&files[..], &size].concat());
    assert_eq!(run.status.code(), Some(1), "{run}");
    assert!(run.error().contains("cannot write latents.safetensors: "), "{run}");
    assert_eq!(fs::read(sandbox.path("latents.safetensors")).unwrap(), b"old");
    let names = sandbox.names();
    assert_eq!(names.len(), 41, "{names:?}");
    for path in run.images() {
        images::read(&sandbox.path(path.to_str().unwrap()));
    }
}

/// Streams that are unread, full or closed do not lose an image. An output stream on a full disk is an error after all
/// images are written.
#[test]
fn unwritable_streams_do_not_stop_a_run() {
    for (script, status) in [
        ("exec \"$@\" >/dev/full", 1),
        ("exec \"$@\" 2>/dev/full", 0),
        ("exec \"$@\" >/dev/full 2>&1", 1),
        ("exec \"$@\" >&-", 0),
        ("exec \"$@\" 2>&-", 0),
        ("{ \"$@\" || echo failed >failed; } 2>&1 | true", 0),
        ("{ \"$@\" -v || echo failed >failed; } 2>&1 | true", 0),
    ] {
        let sandbox = Sandbox::new();
        let run = sandbox.shell(script, &["an apple", "-s", "7", "-b", "2", "-o", "{seed}.png"]);
        assert_eq!(run.status.code(), Some(status), "{run}");
        assert_eq!(sandbox.names(), ["7.png", "8.png"], "{run}");
        for name in sandbox.names() {
            images::read(&sandbox.path(&name));
        }
    }
}

/// Commands that only print fail to print, but do not panic.
#[test]
fn unwritable_streams_do_not_panic() {
    let sandbox = Sandbox::new();
    let model = fixtures("models/sd1").display().to_string();
    for args in [
        &["devices"][..],
        &["devices", "--json"],
        &["inspect", &model],
        &["inspect", &model, "--json"],
        &["plan", "sd15-512"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["man"],
        &["--help"],
        &["txt2img", "--help"],
        &["--version"],
    ] {
        let expected = &["error: cannot write the standard output: No space left"];
        sandbox.shell_kiln("exec \"$@\" >/dev/full", args).fails(1, expected);
        sandbox.shell_kiln("{ \"$@\" || echo failed >&2; } | true", args).succeeds();
        let run = sandbox.shell_kiln("{ \"$@\" || echo failed >&2; } | head -c 1", args).succeeds();
        assert!(!run.stderr.contains("failed") && !run.stderr.contains("error"), "{run}");
    }
    sandbox.shell_kiln::<&str>("exec \"$@\" >/dev/full 2>&1", &[]);
    for args in [["-s", "x"], ["--steps", "0"], ["-m", "nowhere"]] {
        let run = sandbox.shell("exec \"$@\" 2>/dev/full", &[&["an apple"], &args[..]].concat());
        assert!(matches!(run.status.code(), Some(1 | 2)), "{run}");
    }
    assert!(sandbox.names().is_empty());
}

/// `ulimit -f` replaces a full disk, without a trap for the signal that comes with it.
#[test]
fn a_file_that_exceeds_its_size_limit_is_an_error() {
    let sandbox = Sandbox::new();
    let script = "ulimit -f 1; exec \"$@\"";
    sandbox.shell(script, &["an apple", "-o", "apple.png"]).fails(1, &["cannot write ", "apple.png: File too large"]);
    assert!(sandbox.names().is_empty(), "{:?}", sandbox.names());
}

#[test]
fn files_of_killed_runs_are_deleted() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("latents")).unwrap();
    for name in [".kiln-aB3xY9.part", "latents/.kiln-000000.part", ".kiln-mine.part"] {
        fs::write(sandbox.path(name), "half").unwrap();
    }
    sandbox.txt2img(&["an apple", "-o", "a.png", "--latents-out", "latents/a.safetensors"]).succeeds();
    assert_eq!(sandbox.names(), [".kiln-mine.part", "a.png", "latents"]);
    assert_eq!(fs::read_dir(sandbox.path("latents")).unwrap().count(), 1);
}

/// Not a device of the system, which a bug would replace: a FIFO, and names of the standard output.
#[test]
fn streams_get_the_image() {
    let sandbox = Sandbox::new();
    let args = |output: &'static str| ["an apple", "-s", "7", "-o", output];
    sandbox.txt2img(&args("plain.png")).succeeds();
    let plain = fs::read(sandbox.path("plain.png")).unwrap();
    for (script, output) in [
        ("mkfifo a.png; cat a.png >read & \"$@\" && wait", "a.png"),
        ("rm a.png; mkfifo a.png; cat a.png >read & sleep 0.1; \"$@\" --overwrite && wait", "a.png"),
        ("\"$@\" >read", "/dev/stdout"),
        ("\"$@\" | cat >read", "/dev/stdout"),
        ("\"$@\" >read", "/proc/self/fd/1"),
    ] {
        let run = sandbox.shell(script, &args(output)).succeeds();
        assert!(fs::read(sandbox.path("read")).unwrap() == plain, "{script}: {run}");
    }
    let names = sandbox.names();
    assert_eq!(names, ["a.png", "plain.png", "read"]);
    assert!(!fs::metadata(sandbox.path("a.png")).unwrap().is_file() && Path::new("/dev/stdout").is_symlink());
    let two = ["an apple", "-b", "2", "-o", "a.png"];
    sandbox.txt2img(&two).refused(&["--output", "'a.png'", "there are several"]);
    // Other files follow the same rule and need no extension there.
    let run = sandbox.kiln(&["bench", "--stages", "text", "--runs", "1", "--device", "cpu", "--json", "/dev/stdout"]);
    let report: serde_json::Value = serde_json::from_str(&run.succeeds().stdout).unwrap();
    assert!(report["models"].is_array());
    sandbox.kiln(&["bench", "--json", "report.txt"]).refused(&["--json", "a name that ends in .json"]);
}

#[test]
fn a_second_signal_ends_a_run_that_waits_for_a_reader() {
    let sandbox = Sandbox::new();
    // Linux reports the function in which the process waits, to some users; else the signals come slightly later.
    let script = "mkfifo a.png; \"$@\" & run=$!
        for i in $(seq 40); do
            case $(cat /proc/$run/wchan) in *fifo*|*pipe*|*partner*) break;; *) sleep 0.05;; esac
        done
        while kill -INT $run 2>/dev/null; do sleep 0.1; done
        wait $run";
    let run = sandbox.shell(script, &["an apple", "-o", "a.png"]);
    assert_eq!(run.status.code(), Some(130), "{run}");
}

/// Opening a FIFO would wait for a writer, and reading a device might never end.
#[test]
fn special_files_are_not_models() {
    let sandbox = Sandbox::new();
    std::process::Command::new("mkfifo").arg(sandbox.path("fifo")).status().unwrap();
    for path in ["fifo", "/dev/null", "/dev/zero"] {
        for args in [&["inspect", path][..], &["convert", path, "out.gguf"], &["txt2img", "a", "-m", path]] {
            sandbox.kiln(args).fails(1, &[path, "is a device or a FIFO"]);
        }
    }
}

#[test]
fn a_log_in_a_file_has_no_colors() {
    let run = Sandbox::new().txt2img(&["an apple", "-vv"]).succeeds();
    assert!(run.stderr.contains("info: loading"), "{run}");
    assert!(!run.stderr.contains('\u{1b}'), "{run}");
}

/// Terminal control characters in files are never printed.
#[test]
fn escape_sequences_of_files_reach_no_terminal() {
    const BAD: [char; 4] = ['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}'];
    let sandbox = Sandbox::new();
    let hostile = "\\u001b]52;c;cm0gLXJmIH4K\\u0007\\u009b2J\\u202eall is well";
    let model = ModelCopy::of("sd1");
    fs::write(format!("{}/model_index.json", model.path()), format!("{{\"_class_name\":\"{hostile}\"}}")).unwrap();
    let shown = "\\u{1b}]52;c;cm0gLXJmIH4K\\u{7}\\u{9b}2J\\u{202e}all is well";
    let run = sandbox.kiln(&["inspect", model.path()]);
    assert!(run.stderr.contains(shown) && !run.stderr.contains(BAD), "{run}");
    let run = sandbox.kiln(&["inspect", model.path(), "--log-format", "json"]);
    let line: serde_json::Value = serde_json::from_str(run.stderr.lines().last().unwrap()).unwrap();
    assert!(line["message"].as_str().unwrap().contains(BAD) && !run.stderr.contains(BAD), "{run}");
    // The log: a missing word list is reported with its folder.
    fs::create_dir(sandbox.path("words\u{202e}")).unwrap();
    for (format, shown) in [("text", "words\\u{202e}"), ("json", "words\\u202e")] {
        let args = ["a __missing__", "--wildcards-dir", "words\u{202e}", "--log-format", format, "-o", "{index}.png"];
        let run = sandbox.txt2img(&args).succeeds();
        assert!(!run.stderr.contains(BAD) && run.stderr.contains(shown), "{run}");
    }
    // Kiln's own settings, which are untrusted as well.
    let settings = "{\"kiln\":\"0\",\"request\":{\"prompt\":\"a\"},\"model\":{\"name\":\"\\u001b]0;ab\\u0007\",\"sha256\":\"\\u001b]0;cd\\u0007efghij\"}}";
    crate::settings::png_with(&sandbox, "evil.png", "kiln", settings);
    for args in [&["inspect", "evil.png"][..], &["inspect", "evil.png", "--json"]] {
        let run = sandbox.kiln(args).succeeds();
        assert!(!run.stdout.contains(BAD) && run.stdout.contains("0;ab"), "{run}");
    }
    let run = sandbox.txt2img(&["a", "--steps", "\u{1b}[31mx"]);
    assert!(run.status.code() == Some(2) && !run.stderr.contains(BAD), "{run}");
}

#[test]
fn an_invalid_command_line_is_reported_in_the_requested_format() {
    let sandbox = Sandbox::new();
    for args in
        [["--log-format=json", "txt2img", "a", "--ensd", "x"], ["--log-format=json", "txt2img", "a", "--no", "x"]]
    {
        let run = sandbox.kiln(&args);
        let line: serde_json::Value = serde_json::from_str(run.stderr.trim_end()).expect(&run.stderr);
        assert!(run.status.code() == Some(2) && line["event"] == "error", "{run}");
        assert!(line["message"].as_str().unwrap().contains("--"), "{run}");
    }
    let run = sandbox.shell("exec \"$@\" --sampler \"$(printf 'eul\\377er')\"", &["an apple"]);
    assert!(run.status.code() == Some(2) && run.error().contains("(\"eul\\xFFer\") is not UTF-8"), "{run}");
    sandbox.txt2img(&["a", "--ensd", "x"]).refused(&["--ensd", "expected a whole number"]);
    sandbox.txt2img(&["a", "--vram-budget", " 5"]).refused(&["--vram-budget", "expected a size such as 6G"]);
}
