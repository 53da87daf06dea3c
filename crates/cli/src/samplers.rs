//! `kiln samplers`: the samplers and the schedules of noise levels.

use kiln_engine::{SamplerKind, SigmaSchedule};
use serde_json::json;

use crate::args::SamplersArgs;
use crate::output::{print, print_json};
use crate::table::table;

/// Runs the command.
pub fn run(args: &SamplersArgs) {
    let samplers = SamplerKind::ALL.map(|one| [one.id(), one.label(), one.description()]);
    let schedules = SigmaSchedule::ALL.map(|one| [one.id(), one.label(), one.description()]);
    if args.json {
        let list = |rows: &[[&str; 3]]| {
            rows.iter()
                .map(|[id, label, about]| json!({ "id": id, "label": label, "about": about }))
                .collect::<Vec<_>>()
        };
        print_json(&json!({ "samplers": list(&samplers), "schedules": list(&schedules) }));
        return;
    }
    let text = |title: &str, rows: &[[&str; 3]]| {
        let rows: Vec<_> = std::iter::once(&[title, "AUTOMATIC1111", ""])
            .chain(rows)
            .map(|row| row.map(String::from).to_vec())
            .collect();
        table(&rows, 3)
    };
    print(&format!("{}\n{}", text("--sampler", &samplers), text("--scheduler", &schedules)));
}
