//! `kiln compare`: how similar images are.

use std::ops::ControlFlow;

use kiln_compare::{Comparison, FidReport, Metric, Report, Summary};
use kiln_engine::start_threads;

use crate::bar::Bar;
use crate::compare_args::CompareArgs;
use crate::failure::Result;
use crate::interrupt;
use crate::output::{print, print_json};
use crate::table::{counted, table};

/// Runs the command. It fails if an image has no pair, if a metric cannot be computed, and if a pair or both sets miss a bound;
/// values are printed in any case.
pub fn run(args: &CompareArgs) -> Result<()> {
    interrupt::listen();
    start_threads(args.threads)?;
    let comparison = Comparison::plan(&args.options())?;
    let bar = Bar::new("{bar:24} {pos}/{len}  left {eta}", comparison.steps() as u64);
    let mut watch = |done: usize| -> ControlFlow<()> {
        if let Some(bar) = &*bar {
            bar.set_position(done as u64);
        }
        interrupt::proceed()
    };
    let report = interrupt::stoppable(|| comparison.run(&mut watch));
    bar.finish();
    let report = report?;
    if args.json {
        print_json(&report.to_json())
    } else {
        print(&text(&report))
    }
    report.failure().map_or(Ok(()), |error| Err(error.into()))
}

/// A row for each pair, then the summary if there are several, and a line for both sets.
fn text(report: &Report) -> String {
    let sets = report.fid.as_ref().map(of_sets).unwrap_or_default();
    // Sets have no rows if their images have no values.
    let is_table = report.fid.is_none() || !report.pairs.is_empty();
    if is_table { of_pairs(report) + &sets } else { sets }
}

/// FID and the numbers of images.
fn of_sets(report: &FidReport) -> String {
    let FidReport { value, images_a, images_b, problems } = report;
    let value = value.map_or_else(|| "-".to_string(), |value| Metric::Fid.shown(value));
    let other = images_b.map_or_else(|| "statistics".to_string(), |images| counted(images, "image"));
    let sizes = format!("{} to {other}", counted(*images_a, "image"));
    let failed = (!problems.is_empty()).then(|| "failed".to_string());
    table(&[[Metric::Fid.label().to_string(), value, sizes].into_iter().chain(failed).collect()], 1)
}

fn of_pairs(report: &Report) -> String {
    let metrics = &report.metrics;
    let title = |name: &str| name.to_string();
    let mut rows = vec![std::iter::once(title("image")).chain(metrics.iter().map(|m| title(m.label()))).collect()];
    for pair in &report.pairs {
        let value = |metric: &Metric| pair.values.get(metric).map_or_else(|| title("-"), |&value| metric.shown(value));
        let name = std::iter::once(one_line(&pair.pair.name));
        let failed = (!pair.problems.is_empty()).then(|| title("failed"));
        rows.push(name.chain(metrics.iter().map(value)).chain(failed).collect::<Vec<_>>());
    }
    if report.pairs.len() > 1 {
        let summaries: Vec<_> = metrics.iter().map(|&metric| (metric, report.summary(metric))).collect();
        for (i, name) in ["least", "mean", "median", "most"].into_iter().enumerate() {
            let value = |(metric, summary): &(Metric, Option<Summary>)| {
                summary.map_or_else(|| title("-"), |summary| metric.shown(summary.rows()[i].1))
            };
            rows.push(std::iter::once(title(name)).chain(summaries.iter().map(value)).collect());
        }
    }
    table(&rows, 1)
}

/// A file's name in one line.
fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kiln_compare::{Pair, PairReport};

    use super::*;

    #[test]
    fn a_table_has_a_row_for_each_pair_and_a_summary() {
        let pair = |name: &str, psnr: Option<f64>| PairReport {
            pair: Pair { name: name.into(), a: name.into(), b: Some(name.into()) },
            size: None,
            values: psnr.map(|psnr| (Metric::Psnr, psnr)).into_iter().collect::<BTreeMap<_, _>>(),
            problems: if psnr.is_some() { Vec::new() } else { vec!["no image".into()] },
        };
        let metrics = vec![Metric::Psnr];
        let pairs = vec![pair("a\nb.png", Some(f64::INFINITY)), pair("c.png", None), pair("d.png", Some(31.0))];
        let mut report = Report { metrics, pairs, fid: None, problems: Vec::new() };
        assert_eq!(
            text(&report),
            "image     PSNR\na b.png    inf\nc.png        -  failed\nd.png    31.00\nleast    31.00\nmean     65.50\nmedian     inf\nmost       inf\n"
        );
        let fid = FidReport { value: Some(23.5), images_a: 1, images_b: None, problems: Vec::new() };
        report.fid = Some(fid.clone());
        assert!(text(&report).ends_with("most       inf\nFID  23.50000  1 image to statistics\n"));
        let failed = FidReport { value: None, images_b: Some(2), problems: vec!["no image".into()], ..fid };
        let sets = Report { pairs: Vec::new(), fid: Some(failed), ..report.clone() };
        assert_eq!(text(&sets), "FID  -  1 image to 2 images  failed\n");
        report.fid = None;
        report.pairs.truncate(1);
        assert_eq!(text(&report), "image    PSNR\na b.png   inf\n");
    }
}
