//! Loading, with libraries that a C compiler makes: each process loads once, so every case is a process.

use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use crate::forward::Function;
use crate::{cudnn, functions, load};

unsafe extern "C" {
    fn cuInit(flags: u32) -> c_int;
    fn cuStreamSynchronize(stream: *mut c_void) -> c_int;
    fn cublasLtCreate(handle: *mut *mut c_void) -> c_int;
    fn curandCreateGenerator(generator: *mut *mut c_void, kind: c_int) -> c_int;
    fn curandGenerate(generator: *mut c_void, numbers: *mut u32, count: usize) -> c_int;
}

/// Compiles a library in which the functions of `tables` return 7, but for those of `code`.
fn compile(file: &Path, tables: &[&[Function]], code: &str) {
    let mut source = code.to_string();
    for function in tables.iter().copied().flatten().filter(|function| !code.contains(function.name)) {
        writeln!(source, "int {}() {{ return 7; }}", function.name).unwrap();
    }
    let path = file.with_extension("c");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&path, source).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(compiler).args(["-w", "-shared", "-fPIC", "-o"]).args([file, &path]).status().unwrap();
    assert!(status.success());
}

fn compile_driver(folder: &Path, version: i32) {
    let code = format!(
        "int cuInit(unsigned flags) {{ return 40 + flags; }} int cuDriverGetVersion(int *version) {{ *version = {version}; return 0; }}"
    );
    compile(&folder.join("libcuda.so.1"), &[functions::DRIVER], &code);
}

/// The output of [`child`] in a process whose loader searches `folder`, and whose home is there.
fn run(folder: &Path) -> String {
    run_with(folder, "")
}

/// [`run`] with a value of `KILN_CUDNN`.
fn run_with(folder: &Path, cudnn: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::child", "--ignored", "--nocapture", "--test-threads", "1"])
        .env("LD_LIBRARY_PATH", folder)
        .env("HOME", folder)
        .env("XDG_DATA_HOME", folder.join("data"))
        .env("KILN_CUDA_LIBS", folder.join("libs"))
        .env("KILN_CUDNN", cudnn)
        .env_remove("VIRTUAL_ENV")
        .env_remove("CUDA_HOME")
        .env_remove("CUDA_PATH")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "the other tests run it in processes of their own"]
fn child() {
    let mut handle = std::ptr::dangling_mut::<c_void>();
    // SAFETY: a function that is not loaded ignores its arguments, and the functions of these tests do so, too.
    let (initialized, synchronized) = unsafe { (cuInit(2), cuStreamSynchronize(std::ptr::null_mut())) };
    // SAFETY: as above; the handle is written through a pointer to a live variable.
    let created = unsafe { cublasLtCreate(&raw mut handle) };
    println!("calls {initialized} {synchronized} {created}");
    match load() {
        Ok(loaded) => println!("loaded {} {:?}", loaded.driver_version, loaded.paths()),
        Err(error) => println!("error {error}"),
    }
    match cudnn() {
        Ok(library) => println!("cuDNN {}", library.path().display()),
        Err(error) => println!("no cuDNN: {error}"),
    }
}

#[test]
fn a_machine_without_a_driver_gets_errors_and_no_crash() {
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        return; // tests on GPUs show the rest
    }
    let folder = tempfile::tempdir().unwrap();
    let printed = run(folder.path());
    assert!(printed.contains("calls 34 34 1"), "{printed}");
    assert!(printed.contains("error NVIDIA's driver cannot be loaded: libcuda.so.1 was not found"), "{printed}");
    assert!(printed.contains("no cuDNN: cuDNN was not found; `pip install --target"), "{printed}");
}

#[test]
fn a_missing_library_is_named_with_a_command() {
    let folder = tempfile::tempdir().unwrap();
    compile_driver(folder.path(), 12080);
    let printed = run(folder.path());
    let command = format!("`pip install --target {:?} nvidia-cublas-cu12", folder.path().join("data/kiln/cuda"));
    assert!(printed.contains("calls 34 7 1") && printed.contains("error cuBLASLt was not found"), "{printed}");
    assert!(printed.contains(&command), "{printed}");
    compile_driver(folder.path(), 11080);
    assert!(run(folder.path()).contains("it supports CUDA 11, and 12 or newer is needed"));
}

#[test]
fn functions_are_those_of_the_libraries_that_are_found() {
    let folder = tempfile::tempdir().unwrap();
    compile_driver(folder.path(), 13000);
    let libs = folder.path().join("libs");
    compile(&libs.join("libcublas.so.13"), &[functions::CUBLAS], "");
    compile(&libs.join("libcublasLt.so.13"), &[functions::CUBLAS_LT], "");
    compile(&libs.join("nvidia/cudnn/lib/libcudnn.so.9"), &[], "int cudnnCreate() { return 0; }");
    let printed = run(folder.path());
    assert!(printed.contains("calls 42 7 7") && printed.contains("loaded 13000"), "{printed}");
    assert!(printed.contains(&libs.join("libcublasLt.so.13").display().to_string()), "{printed}");
    assert!(printed.contains("nvidia/cudnn/lib/libcudnn.so.9"), "{printed}");
    let printed = run_with(folder.path(), "off");
    assert!(printed.contains("no cuDNN: cuDNN is off: KILN_CUDNN=off"), "{printed}");

    compile(&libs.join("libcublas.so.13"), &[], "int cublasCreate_v2() { return 0; }");
    let printed = run(folder.path());
    assert!(printed.contains("libcublas.so.13 has no function cublasDasum_v2"), "{printed}");
    std::fs::write(libs.join("libcublasLt.so.13"), "no library").unwrap();
    let printed = run(folder.path());
    assert!(printed.contains("libcublasLt.so.13 cannot be loaded") && printed.contains("file too short"), "{printed}");
}

#[test]
fn a_generator_of_random_numbers_exists_and_makes_none() {
    let mut generator = std::ptr::dangling_mut();
    // SAFETY: the handle is written through a pointer to a live variable, and the other function reads nothing.
    let statuses = unsafe {
        (curandCreateGenerator(&raw mut generator, 100), curandGenerate(std::ptr::null_mut(), std::ptr::null_mut(), 0))
    };
    assert_eq!((statuses, generator.is_null()), ((0, 101), true));
}
