//! The CUDA generator compared with a GPU's (`tests/reference/rng_cuda.py`).

use kiln_scheduler::CudaRng;
use kiln_testkit::fixtures;
use serde::Deserialize;

/// Relative to 1 or the value, whichever is larger: a GPU computes sine and cosine with its special function units.
const TOLERANCE: f64 = 2e-6;

#[derive(Deserialize)]
struct Drawn {
    #[serde(rename = "card")]
    gpu: String,
    threads: usize,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    seed: u64,
    draws: Vec<usize>,
    /// The indices and values of each output.
    values: Vec<Vec<(usize, f64)>>,
}

#[test]
fn noise_matches_a_gpu() {
    let text = std::fs::read_to_string(fixtures("stages").join("rng_cuda.json")).unwrap();
    let Drawn { gpu, threads, rows } = serde_json::from_str(&text).unwrap();
    let mut worst = 0f64;
    for Row { seed, draws, values } in rows {
        let mut rng = CudaRng::with_max_threads(seed, threads);
        for (n, expected) in draws.into_iter().zip(values) {
            let found = rng.normals(n);
            for (index, expected) in expected {
                let error = (f64::from(found[index]) - expected).abs() / expected.abs().max(1.0);
                worst = worst.max(error);
                assert!(error <= TOLERANCE, "seed {seed}, value {index} of {n}: {}, expected {expected}", found[index]);
            }
        }
    }
    println!("{gpu}: at most {worst:.1e} off");
}
