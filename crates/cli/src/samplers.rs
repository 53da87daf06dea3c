//! `kiln samplers`: the samplers and the schedules of noise levels.

use kiln_engine::{FlowForm, SamplerKind, SigmaSchedule};
use serde_json::json;

use crate::args::SamplersArgs;
use crate::output::{print, print_json};
use crate::table::table;

/// Marks what works for flow models, as Stable Diffusion 3 and FLUX.1.
const FLOW: &str = "yes";

/// Runs the command.
pub fn run(args: &SamplersArgs) {
    let flow = |works: bool| if works { FLOW } else { "" };
    let samplers =
        SamplerKind::ALL.map(|one| [one.id(), one.label(), flow(one.flow() != FlowForm::Refused), one.description()]);
    let schedules =
        SigmaSchedule::ALL.map(|one| [one.id(), one.label(), flow(one.works_for_flow()), one.description()]);
    if args.json {
        let one = |[id, label, flow, about]: &[&str; 4]| json!({ "id": id, "label": label, "flow": *flow == FLOW, "about": about });
        let list = |rows: &[[&str; 4]]| rows.iter().map(one).collect::<Vec<_>>();
        print_json(&json!({ "samplers": list(&samplers), "schedules": list(&schedules) }));
        return;
    }
    let text = |title: &str, rows: &[[&str; 4]]| {
        let rows: Vec<_> = std::iter::once(&[title, "AUTOMATIC1111", "flow models", ""])
            .chain(rows)
            .map(|row| row.map(String::from).to_vec())
            .collect();
        table(&rows, 4)
    };
    print(&format!("{}\n{}", text("--sampler", &samplers), text("--scheduler", &schedules)));
}
