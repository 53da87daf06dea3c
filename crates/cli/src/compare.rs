//! `kiln compare`: how similar images are.

use std::ops::ControlFlow;

use kiln_compare::{Comparison, Metric, Report, Summary};
use kiln_engine::start_threads;

use crate::bar::Bar;
use crate::compare_args::CompareArgs;
use crate::failure::Result;
use crate::interrupt;
use crate::output::{print, print_json};
use crate::table::table;

/// Runs the command. It fails if an image has no pair, if a metric cannot be computed, and if a pair misses a bound; values are
/// printed in any case.
pub fn run(args: &CompareArgs) -> Result<()> {
    interrupt::listen();
    start_threads(args.threads)?;
    let comparison = Comparison::plan(&args.options())?;
    let bar = Bar::new("{bar:24} {pos}/{len}  left {eta}", comparison.len() as u64);
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

/// A row for each pair, then the summary if there are several.
fn text(report: &Report) -> String {
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
            pair: Pair { name: name.into(), a: name.into(), b: name.into() },
            size: None,
            values: psnr.map(|psnr| (Metric::Psnr, psnr)).into_iter().collect::<BTreeMap<_, _>>(),
            problems: if psnr.is_some() { Vec::new() } else { vec!["no image".into()] },
        };
        let metrics = vec![Metric::Psnr];
        let pairs = vec![pair("a\nb.png", Some(f64::INFINITY)), pair("c.png", None), pair("d.png", Some(31.0))];
        let mut report = Report { metrics, pairs, problems: Vec::new() };
        assert_eq!(
            text(&report),
            "image     PSNR\na b.png    inf\nc.png        -  failed\nd.png    31.00\nleast    31.00\nmean     65.50\nmedian     inf\nmost       inf\n"
        );
        report.pairs.truncate(1);
        assert_eq!(text(&report), "image    PSNR\na b.png   inf\n");
    }
}
