//! Engines with threads of their own: each has its pool, and an image's bits do not depend on it.

use kiln_engine::{ModeChoice, Setup};

use crate::support::{cpu, cpu_in, images, latents, request, tiny};

#[test]
fn engines_with_their_own_threads_make_the_same_bits_at_once() {
    let bits = |setup: &Setup| {
        let mut engine = tiny("sd1", setup);
        let images = images(&mut engine, &request("a pear", (64, 64), 3, 1));
        latents(&images).flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let expected = bits(&cpu());
    let mode = |mode: ModeChoice, threads| Setup { threads: Some(threads), ..cpu_in(mode) };
    let setups = [
        mode(ModeChoice::Full, 1),
        mode(ModeChoice::Full, 3),
        mode(ModeChoice::Lowvram, 1), // weights must arrive although the only thread waits for them
        mode(ModeChoice::Lowvram, 3),
    ];
    std::thread::scope(|scope| {
        let runs: Vec<_> = setups.iter().map(|setup| scope.spawn(|| bits(setup))).collect();
        for (run, setup) in runs.into_iter().zip(&setups) {
            assert_eq!(run.join().unwrap(), expected, "{:?} threads, {:?}", setup.threads, setup.memory.mode);
        }
    });
}
