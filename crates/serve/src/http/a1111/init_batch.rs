//! Several `init_images` in one request: a result for each.

use kiln_engine::Request;
use kiln_engine::limits::random_seed;

use crate::error::Refused;

/// The requests of a call of `img2img`, in the order of the results: one, or with several images one for each result.
///
/// `StableDiffusionProcessingImg2Img.init` of that program makes the number of images the size of a batch where `batch_size` is at least
/// as large, and refuses more; here they are a batch whatever `batch_size` says. As there, each of the `n_iter` batches has all images,
/// and the seeds count on over all results; with a variation strength the seed stays and the second seed counts on.
///
/// # Errors
/// [`Refused`] for more results than `most`.
pub(super) fn requests(
    request: Request,
    inits: Vec<String>,
    most: usize,
    warnings: &mut Vec<String>,
) -> Result<Vec<Request>, Refused> {
    if inits.len() < 2 {
        let init = inits.into_iter().next().map(Into::into);
        return Ok(vec![Request { init, ..request }]);
    }
    let batches = request.batch_count.unwrap_or(1);
    let results = batches.saturating_mul(inits.len());
    if results > most {
        let expected = format!("at most {most} results, the limit of this server");
        return Err(Refused::value("init_images", results, expected));
    }
    if let Some(size) = request.batch_size.filter(|size| *size > 1 && *size != inits.len()) {
        warnings.push(format!(
            "`batch_size` {size} is left out: a batch has one result for each of {} images",
            inits.len()
        ));
    }
    let (seed, subseed) = (request.seed.unwrap_or_else(random_seed), request.subseed.unwrap_or_else(random_seed));
    let is_varied = request.subseed_strength.is_some_and(|strength| strength > 0.0);
    let one = |(number, init): (u64, &String)| Request {
        init: Some(init.into()),
        seed: Some(if is_varied { seed } else { seed.wrapping_add(number) }),
        subseed: if is_varied { Some(subseed.wrapping_add(number)) } else { request.subseed },
        batch_count: Some(1),
        batch_size: Some(1),
        ..request.clone()
    };
    Ok((0..).zip((0..batches).flat_map(|_| &inits)).map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(request: Request, inits: &[&str]) -> (Vec<Request>, Vec<String>) {
        let mut warnings = Vec::new();
        let inits = inits.iter().map(|init| init.to_string()).collect();
        (requests(request, inits, 8, &mut warnings).unwrap(), warnings)
    }

    #[test]
    fn seeds_count_on_over_images_and_batches() {
        let request = Request { seed: Some(5), batch_count: Some(2), batch_size: Some(3), ..Request::default() };
        let (all, warnings) = of(request.clone(), &["a", "b"]);
        let found: Vec<_> = all.iter().map(|one| (one.init.as_ref().unwrap().to_str().unwrap(), one.seed)).collect();
        assert_eq!(found, [("a", Some(5)), ("b", Some(6)), ("a", Some(7)), ("b", Some(8))]);
        assert!(all.iter().all(|one| one.batch_count == Some(1) && one.batch_size == Some(1)));
        assert_eq!(warnings, ["`batch_size` 3 is left out: a batch has one result for each of 2 images"]);
        let varied = Request { subseed: Some(1), subseed_strength: Some(0.5), batch_count: None, ..request.clone() };
        let seeds: Vec<_> = of(varied, &["a", "b"]).0.iter().map(|one| (one.seed, one.subseed)).collect();
        assert_eq!(seeds, [(Some(5), Some(1)), (Some(5), Some(2))]);
        let random = of(Request::default(), &["a", "b"]).0;
        assert_eq!(random[0].seed.map(|seed| seed.wrapping_add(1)), random[1].seed);
        let one = of(Request { batch_size: Some(3), ..request }, &["a"]);
        assert_eq!((one.0.len(), one.0[0].batch_size, one.1.len()), (1, Some(3), 0));
    }

    #[test]
    fn results_are_limited() {
        let request = Request { batch_count: Some(5), ..Request::default() };
        let refused = requests(request, vec!["a".into(), "b".into()], 9, &mut Vec::new()).unwrap_err();
        assert!(refused.message.contains("`init_images` is 10, expected at most 9 results"), "{}", refused.message);
    }
}
