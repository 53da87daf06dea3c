//! The results of a comparison.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::bounds::Metric;
use crate::error::Error;
use crate::fid::FidReport;
use crate::pairs::Pair;
use crate::summary::Summary;

/// The values of a pair.
#[derive(Debug, Clone)]
pub struct PairReport {
    /// The images.
    pub pair: Pair,
    /// Width and height, if both images have been read and have the same.
    pub size: Option<[usize; 2]>,
    /// The metrics that were computed.
    pub values: BTreeMap<Metric, f64>,
    /// Why the pair fails, a clause each; none if it passes.
    pub problems: Vec<String>,
}

/// The values of all pairs.
#[derive(Debug, Clone)]
pub struct Report {
    /// The metrics that were asked for.
    pub metrics: Vec<Metric>,
    /// The pairs, in the order of the first images' names.
    pub pairs: Vec<PairReport>,
    /// The distance of both folders as sets, if it was asked for.
    pub fid: Option<FidReport>,
    /// Images without a pair, a sentence each.
    pub problems: Vec<String>,
}

impl Report {
    /// The values of a metric in four numbers, if a pair has one.
    pub fn summary(&self, metric: Metric) -> Option<Summary> {
        Summary::of(metric, self.pairs.iter().filter_map(|pair| pair.values.get(&metric).copied()))
    }

    /// The error of a comparison that does not pass: a pair fails, an image has none, FID fails, or nothing was compared.
    pub fn failure(&self) -> Option<Error> {
        let of = |report: &PairReport| {
            let name = report.pair.name.clone();
            report.problems.iter().map(move |problem| format!("{name}: {problem}")).collect::<Vec<_>>()
        };
        let of_sets = self.fid.iter().flat_map(|fid| fid.problems.iter().cloned());
        let of_pairs = self.pairs.iter().flat_map(of).chain(self.problems.iter().cloned());
        let mut all: Vec<String> = of_pairs.chain(of_sets).collect();
        if self.pairs.is_empty() && self.fid.is_none() {
            all.push("there is no pair of images".into());
        }
        (!all.is_empty()).then_some(Error::Failed(all))
    }

    /// The report as JSON. An infinite PSNR, that of equal images, is the text `inf`; what was not computed is null.
    pub fn to_json(&self) -> Value {
        let pairs: Vec<Value> = self.pairs.iter().map(|pair| self.pair_json(pair)).collect();
        let summary = self.metrics.iter().map(|&metric| {
            let values =
                self.summary(metric).map(|summary| summary.rows().map(|(name, value)| (name.into(), number(value))));
            (metric.id().into(), values.map_or(Value::Null, |values| Map::from_iter(values).into()))
        });
        let mut json = json!({
            "passed": self.failure().is_none(),
            "pairs": pairs,
            "summary": Map::from_iter(summary),
            "problems": self.problems,
        });
        if let Some(FidReport { value, images_a, images_b, problems }) = &self.fid {
            json[Metric::Fid.id()] =
                json!({ "value": value, "images_a": images_a, "images_b": images_b, "problems": problems });
        }
        json
    }

    fn pair_json(&self, report: &PairReport) -> Value {
        let PairReport { pair, size, values, problems } = report;
        let mut json = json!({
            "name": pair.name,
            "a": pair.a.to_string_lossy(),
            "b": pair.b.as_ref().map(|path| path.to_string_lossy()),
            "width": size.map(|[width, _]| width),
            "height": size.map(|[_, height]| height),
            "problems": problems,
        });
        for metric in &self.metrics {
            json[metric.id()] = values.get(metric).map_or(Value::Null, |&value| number(value));
        }
        json
    }
}

/// A value in JSON, which has no infinity.
fn number(value: f64) -> Value {
    if value.is_finite() { value.into() } else { value.to_string().into() }
}
