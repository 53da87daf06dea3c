//! An empty folder, and `kiln` running in it.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use kiln_testkit::fixtures;
use tempfile::TempDir;

/// The maximum time of a run with a tiny model; a longer run hangs.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Variables that would direct a test to a user's cache or to another server.
const HUB: [&str; 9] = [
    "HF_ENDPOINT",
    "HF_HUB_CACHE",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HUGGING_FACE_HUB_TOKEN",
    "HUGGINGFACE_HUB_CACHE",
    "TRANSFORMERS_OFFLINE",
];

/// A folder that is deleted at the end of the test; `kiln` runs in it with its own cache.
pub struct Sandbox(TempDir, TempDir);

impl Sandbox {
    /// An empty folder.
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The entries of the folder including hidden files, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Runs `kiln` with `args`.
    pub fn kiln<S: AsRef<OsStr>>(&self, args: &[S]) -> Run {
        self.start(Command::new(env!("CARGO_BIN_EXE_kiln")).args(args)).finish()
    }

    /// A copy of the program in a folder of its own, as an installed one.
    pub fn install(&self) -> PathBuf {
        let program = self.path("bin/kiln");
        std::fs::create_dir_all(self.path("bin")).unwrap();
        if !program.exists() && std::fs::hard_link(env!("CARGO_BIN_EXE_kiln"), &program).is_err() {
            std::fs::copy(env!("CARGO_BIN_EXE_kiln"), &program).unwrap();
        }
        program
    }

    /// Starts an installed program with `args` and these variables.
    pub fn start_installed(&self, variables: &[(&str, &OsStr)], args: &[&str]) -> Running {
        let mut command = Command::new(self.install());
        command.args(args);
        // cargo names the package to what it runs, which would find the model of the sources.
        self.start_with(command.env_remove("CARGO_MANIFEST_DIR"), variables)
    }

    /// Runs `kiln txt2img` with `args` and, unless they set them, a tiny model, one step and a small size.
    pub fn txt2img(&self, args: &[&str]) -> Run {
        self.kiln(&txt2img(args))
    }

    /// Runs `script` in a shell, where `"$@"` is `kiln txt2img` with `args` completed as in [`Self::txt2img`].
    pub fn shell(&self, script: &str, args: &[&str]) -> Run {
        self.shell_kiln(script, &txt2img(args))
    }

    /// Runs `script` in a shell, where `"$@"` is `kiln` with `args`.
    pub fn shell_kiln<S: AsRef<OsStr>>(&self, script: &str, args: &[S]) -> Run {
        self.start_shell(script, args).finish()
    }

    /// Starts `kiln txt2img`, completed as in [`Self::txt2img`].
    pub fn start_txt2img(&self, args: &[&str]) -> Running {
        self.start(Command::new(env!("CARGO_BIN_EXE_kiln")).args(txt2img(args)))
    }

    /// Starts `kiln` with `args`.
    pub fn start_kiln<S: AsRef<OsStr>>(&self, args: &[S]) -> Running {
        self.start(Command::new(env!("CARGO_BIN_EXE_kiln")).args(args))
    }

    /// Starts `script` in a shell, where `"$@"` is `kiln` with `args`.
    pub fn start_shell<S: AsRef<OsStr>>(&self, script: &str, args: &[S]) -> Running {
        let kiln = env!("CARGO_BIN_EXE_kiln");
        self.start(Command::new("sh").args(["-c", script, "sh", kiln]).args(args))
    }

    fn start(&self, command: &mut Command) -> Running {
        self.start_with(command, &[])
    }

    /// Starts a command with variables that replace those of all tests.
    fn start_with(&self, command: &mut Command, variables: &[(&str, &OsStr)]) -> Running {
        command.current_dir(self.0.path());
        for name in [
            "KILN_MODELS",
            "KILN_LORAS",
            "KILN_EMBEDDINGS",
            "KILN_WEIGHT_CACHE",
            "KILN_UPSCALERS",
            "RUST_LOG",
            "COLUMNS",
        ] {
            command.env_remove(name);
        }
        // Tests do not see the user's settings and cache: those of a test are in its folder.
        for name in HUB {
            command.env_remove(name);
        }
        command.env("HF_HOME", self.path("hf"));
        command.env("KILN_CACHE", self.1.path());
        // Without a desktop, Mesa's Vulkan driver prints an error unless this is set.
        command.env("NODEVICE_SELECT", "1");
        command.envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let line = format!("{command:?}");
        let mut child = command.spawn().unwrap();
        let stdout = Stream::read(child.stdout.take().unwrap());
        let stderr = Stream::read(child.stderr.take().unwrap());
        Running { line, child, stdout, stderr }
    }
}

/// The arguments of `kiln txt2img` with the values for a short run, unless they set them.
fn txt2img(args: &[&str]) -> Vec<OsString> {
    let model = fixtures("models/sd1").into_os_string();
    let filling = [
        (["-m", "--model"], model),
        (["-W", "--width"], "64".into()),
        (["-H", "--height"], "64".into()),
        (["--steps", "--steps"], "1".into()),
    ];
    let mut all: Vec<OsString> = vec!["txt2img".into()];
    for (flags, value) in filling {
        if !args.iter().any(|arg| flags.iter().any(|flag| arg.split('=').next() == Some(flag))) {
            all.extend([flags[0].into(), value]);
        }
    }
    all.extend(args.iter().map(OsString::from));
    all
}

/// The output of a process to a stream so far, read by a thread so that a full pipe does not block the process.
struct Stream(Arc<(Mutex<Written>, Condvar)>);

#[derive(Default)]
struct Written {
    bytes: Vec<u8>,
    ended: bool,
}

impl Stream {
    fn read(mut stream: impl Read + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::new(Written::default()), Condvar::new()));
        let writer = Arc::clone(&shared);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let count = stream.read(&mut buffer).unwrap();
                let mut written = writer.0.lock().unwrap();
                written.bytes.extend_from_slice(&buffer[..count]);
                written.ended = count == 0;
                writer.1.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        Self(shared)
    }

    /// Waits until `enough` holds for the text or the stream has ended, and returns the text; `None` after a timeout.
    fn wait(&self, enough: impl Fn(&str) -> bool) -> Option<String> {
        let (written, changed) = &*self.0;
        let text = |written: &Written| String::from_utf8_lossy(&written.bytes).into_owned();
        let waits = |written: &mut Written| !written.ended && !enough(&text(written));
        let (written, result) = changed.wait_timeout_while(written.lock().unwrap(), TIME_LIMIT, waits).unwrap();
        (!result.timed_out()).then(|| text(&written))
    }
}

/// The stream whose lines [`Running::wait_for`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lines {
    /// The output stream.
    Output,
    /// The error stream.
    Errors,
}

/// A started process.
pub struct Running {
    line: String,
    child: Child,
    stdout: Stream,
    stderr: Stream,
}

impl Running {
    /// Sends a signal by its name without `SIG`. The process may have ended.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id()); // a child keeps its number until it is waited for
        Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status().unwrap();
    }

    /// Ends the process without a chance to react: `SIGKILL`, or what Windows has for it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits until `count` lines of the output stream, or of the error stream, begin with `start`, or the process has ended.
    #[track_caller]
    pub fn wait_for(&self, (stream, start): (Lines, &str), count: usize) {
        let stream = if stream == Lines::Output { &self.stdout } else { &self.stderr };
        let whole_lines = |text: &str| {
            text.split_inclusive('\n').filter(|line| line.ends_with('\n') && line.starts_with(start)).count()
        };
        let found = stream.wait(|text| whole_lines(text) >= count);
        assert!(found.is_some(), "no {count} lines {start:?} after {TIME_LIMIT:?}: {}", self.line);
    }

    /// Waits for the end.
    #[track_caller]
    pub fn finish(mut self) -> Run {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > TIME_LIMIT {
                self.child.kill().unwrap();
                panic!("still running after {TIME_LIMIT:?}: {}", self.line);
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let [stdout, stderr] = [self.stdout, self.stderr]
            .map(|stream| stream.wait(|_| false).unwrap_or_else(|| panic!("a stream is still open: {}", self.line)));
        let run = Run { line: self.line, status, stdout, stderr };
        assert!(status.code() != Some(101) && !run.stderr.contains("panicked at"), "a panic: {run}");
        run
    }
}

/// A process that has ended without a panic.
pub struct Run {
    line: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, status, stdout, stderr } = self;
        write!(f, "{line}\n{status}\nstdout:\n{stdout}\nstderr:\n{stderr}")
    }
}

impl Run {
    /// Expects success.
    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert!(self.status.success(), "{self}");
        self
    }

    /// Expects this exit status, an error message with all of `expected`, and nothing on the output stream.
    #[track_caller]
    pub fn fails(self, status: i32, expected: &[&str]) -> Self {
        assert_eq!(self.status.code(), Some(status), "{self}");
        assert!(self.stdout.is_empty(), "{self}");
        let message = self.error();
        for text in expected {
            assert!(message.contains(text), "the message has no {text:?}: {self}");
        }
        self
    }

    /// Expects, in addition to [`Self::fails`], that the error is the first message to the user.
    #[track_caller]
    pub fn refused(self, expected: &[&str]) -> Self {
        let run = self.fails(2, expected);
        assert!(run.stderr.starts_with("error: "), "output before the error: {run}");
        run
    }

    /// The error message and all following text.
    #[track_caller]
    pub fn error(&self) -> &str {
        let start = self.stderr.find("error: ").unwrap_or_else(|| panic!("no error message: {self}"));
        &self.stderr[start..]
    }

    /// The paths of the images, from the output stream.
    pub fn images(&self) -> Vec<PathBuf> {
        self.stdout.lines().map(PathBuf::from).collect()
    }

    /// The seeds of the first and the last image, from the line about the job on the error stream.
    #[track_caller]
    pub fn seeds(&self) -> (u64, u64) {
        let text = self.stderr.lines().find_map(|line| line.split_once(", seed"));
        let (_, text) = text.unwrap_or_else(|| panic!("no seed: {self}"));
        let seeds: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
        (seeds[0], seeds[seeds.len() - 1])
    }
}
