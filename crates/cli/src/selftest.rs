//! `kiln bench --selftest`: whether a device computes what it should.

use std::path::Path;

use kiln_bench::{ImageReport, OperatorReport, ReportFile, SelfTest, SelfTestReport};
use kiln_engine::{ModelFolder, locate_model};

use crate::bar::Bar;
use crate::bench::in_words;
use crate::bench_args::BenchArgs;
use crate::failure::Result;
use crate::interrupt;
use crate::output::{print, print_json};
use crate::table::table;
use crate::usage;

/// Runs the command. It fails if an operator or the image does; the report is printed in any case.
pub fn run(args: &BenchArgs) -> Result<()> {
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    let file = args.json.as_deref().filter(|_| !to_stdout).map(ReportFile::plan).transpose()?;
    // A program without the small model tests operators alone, unless the folder `models` has it.
    let model = locate_model(None).and_then(|folder| ModelFolder::open(&folder)).ok();
    let test = SelfTest { model, ..args.self_test() };
    let bar = Bar::new("{spinner} {msg}", 0);
    let report = test.run(&mut |name| {
        if let Some(bar) = &*bar {
            bar.set_message(name.to_string());
            bar.tick();
        }
        interrupt::proceed()
    });
    bar.finish();
    let report = SelfTestReport { commit: usage::commit(), ..report? };
    match file {
        _ if to_stdout => print_json(&serde_json::json!(report)),
        Some(file) => interrupt::whole(file.file().is_stream(), || file.write(&report))?,
        None => print(&text(&report)),
    }
    report.failure().map_or(Ok(()), |error| Err(error.into()))
}

fn text(report: &SelfTestReport) -> String {
    let commit = report.commit.map_or_else(String::new, |commit| format!(" ({commit})"));
    let mut text = format!("{}; {}; kiln {}{commit}\n\n", in_words(&report.machine), report.dtype, report.version);
    let mut rows = vec![["operator", "operands", "error", "bound", ""].map(String::from).to_vec()];
    rows.extend(report.operators.iter().map(row));
    text += &table(&rows, 2);
    for operator in &report.operators {
        if let Some(failure) = &operator.failure {
            text += &format!("{}: {failure}\n", operator.name);
        }
    }
    match &report.image {
        Some(image) => text += &format!("\n{}\n", of_image(image)),
        None => text += "\nno image: the small model is not here\n",
    }
    let passed = report.operators.iter().filter(|operator| operator.has_passed()).count();
    text + &format!("{passed} of {} operators passed in {:.0} s\n", report.operators.len(), report.seconds)
}

fn row(operator: &OperatorReport) -> Vec<String> {
    let error = operator.error.map_or_else(|| "none".into(), |error| format!("{error:.1e}"));
    let passed = if operator.has_passed() { "passed" } else { "FAILED" };
    vec![operator.name.clone(), operator.shape.clone(), error, format!("{:.1e}", operator.bound), passed.into()]
}

/// One line for the image.
fn of_image(image: &ImageReport) -> String {
    let ImageReport { model, psnr, bound, is_repeatable, seconds, failure } = image;
    let passed = if image.has_passed() { "passed" } else { "FAILED" };
    if let Some(failure) = failure {
        return format!("an image of {model}: {failure}: {passed}");
    }
    let ratio = psnr.map_or_else(|| "equal to the CPU's".into(), |psnr| format!("{psnr:.1} dB from the CPU's in f32"));
    let repeated = if *is_repeatable { "the same in two calls" } else { "another one in each call" };
    format!("an image of {model} in {seconds:.2} s: {ratio} (bound {bound:.0} dB), {repeated}: {passed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_one_line() {
        let image = ImageReport {
            model: "emoji".into(),
            psnr: Some(51.24),
            bound: 47.0,
            is_repeatable: true,
            seconds: 0.25,
            failure: None,
        };
        let line =
            "an image of emoji in 0.25 s: 51.2 dB from the CPU's in f32 (bound 47 dB), the same in two calls: passed";
        assert_eq!(of_image(&image), line);
        let failed = of_image(&ImageReport { failure: Some("out of memory".into()), ..image.clone() });
        assert_eq!(failed, "an image of emoji: out of memory: FAILED");
        let equal = of_image(&ImageReport { psnr: None, is_repeatable: false, ..image });
        assert!(equal.ends_with("equal to the CPU's (bound 47 dB), another one in each call: FAILED"), "{equal}");
    }

    #[test]
    fn a_row_says_what_failed() {
        let operator = OperatorReport {
            name: "linear".into(),
            shape: "5 x 7 x 3".into(),
            error: Some(2e-3),
            bound: 1e-3,
            failure: None,
        };
        assert_eq!(row(&operator), ["linear", "5 x 7 x 3", "2.0e-3", "1.0e-3", "FAILED"]);
        let missing = OperatorReport { error: None, failure: Some("no kernel".into()), ..operator };
        assert_eq!(row(&missing)[2..], ["none", "1.0e-3", "FAILED"]);
    }
}
