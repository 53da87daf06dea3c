//! A file of jobs, and the texts of `--set` and `--grid`. The first byte selects the type.
#![no_main]

use kiln_batch::{Assignment, Axis, JobFile, JobFormat, JobSet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    let format = match kind {
        b'j' => Some(JobFormat::JsonLines),
        b'c' => Some(JobFormat::Csv),
        b't' => Some(JobFormat::Text),
        b's' => return fields(rest),
        _ => None,
    };
    let Ok(file) = JobFile::parse("jobs", rest, format) else { return };
    if let Ok(set) = JobSet::new(&file, &[], Vec::new(), None) {
        assert!(set.len() <= data.len(), "a job takes at least a byte");
        assert!(set.models().len() <= set.len());
    }
});

/// Each line is the text of an option, used as an axis and as a value of all jobs.
fn fields(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let axes: Vec<Axis> = text.lines().filter_map(|line| line.parse().ok()).take(1).collect();
    let set: Vec<Assignment> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let _ = JobSet::new(&JobFile::nothing(), &set, axes, None);
}
