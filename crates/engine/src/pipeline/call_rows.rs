//! The rows of several groups in one call of the denoiser.

use candle_core::Tensor;
use kiln_scheduler::Evaluation;

use crate::error::Result;

/// Rows of several groups, each `(k n, ..)` for `n` images, as those of one batch: the first of every image, the second of
/// every image. `images` has the numbers of images of the groups.
pub(crate) fn interleaved(rows: &[&Tensor], images: &[usize]) -> candle_core::Result<Tensor> {
    let k = match (rows.first(), images.first()) {
        (Some(rows), Some(&n)) if n > 0 => rows.dim(0)? / n,
        _ => 0,
    };
    let mut all = Vec::with_capacity(k * rows.len());
    for i in 0..k {
        for (rows, &n) in rows.iter().zip(images) {
            all.push(rows.narrow(0, i * n, n)?);
        }
    }
    Tensor::cat(&all, 0)
}

/// The outputs of the groups, each with all of its predictions, of the rows of a batch.
pub(crate) fn split(output: Tensor, images: &[usize]) -> Result<Vec<Tensor>> {
    if images.len() == 1 {
        return Ok(vec![output]);
    }
    let all: usize = images.iter().sum();
    let kinds = output.dim(0)? / all.max(1);
    let mut start = 0;
    let of_group = |&n: &usize| -> Result<Tensor> {
        let parts = (0..kinds).map(|kind| Ok(output.narrow(0, kind * all + start, n)?)).collect::<Result<Vec<_>>>()?;
        start += n;
        match &parts[..] {
            [one] => Ok(one.clone()),
            many => Ok(Tensor::cat(many, 0)?),
        }
    };
    images.iter().map(of_group).collect()
}

/// The timesteps of a call: one where all groups have the same, else one for each image.
pub(crate) fn timesteps(images: &[usize], evaluations: &[Evaluation]) -> Vec<f64> {
    match evaluations {
        [first, rest @ ..] if rest.iter().all(|other| other.timestep == first.timestep) => vec![first.timestep],
        all => {
            let of_group = |(&n, evaluation): (&usize, &Evaluation)| vec![evaluation.timestep; n];
            images.iter().zip(all).flat_map(of_group).collect()
        }
    }
}
