//! `kiln devices`: the devices of this machine, and the defaults that Kiln chooses for them.

use kiln_engine::{Devices, PortableInfo, devices};

use crate::args::DevicesArgs;
use crate::output::{print, print_json};
use crate::table::size;

/// Runs the command.
pub fn run(args: &DevicesArgs) {
    let devices = devices();
    if args.json { print_json(&serde_json::json!(devices)) } else { print(&text(&devices)) }
}

fn text(devices: &Devices) -> String {
    let mut lines = vec![
        format!("CPU        {}, {} threads", devices.processor, devices.threads),
        format!("           {}", devices.features.join(" ")),
    ];
    if let (Some(total), Some(available)) = (devices.memory_total, devices.memory_available) {
        let limit = devices.memory_physical.map_or_else(String::new, |physical| {
            format!(" (the limit of this process's control group; {} physical)", size(physical))
        });
        lines.push(format!("memory     {}{limit}, {} available", size(total), size(available)));
    }
    lines.push(format!("cuda       {}", devices.cuda));
    lines.extend(devices.libraries.iter().map(|library| format!("           {library}")));
    for gpu in &devices.cards {
        lines.push(format!(
            "cuda:{}     {}, compute capability {}, {} multiprocessors, {} of {} free",
            gpu.ordinal,
            gpu.name,
            gpu.compute_capability,
            gpu.multiprocessors,
            size(gpu.memory_free as u64),
            size(gpu.memory_total as u64),
        ));
    }
    for gpu in &devices.portable {
        let kind = match gpu {
            PortableInfo { is_software: true, .. } => "a program on the CPU, for tests",
            PortableInfo { is_discrete: true, .. } => "its own memory",
            _ => "memory shared with the CPU",
        };
        let types = if gpu.has_f16 { "f16 and f32" } else { "f32" };
        let memory = match (gpu.memory_free, gpu.memory_total) {
            (Some(free), Some(total)) => format!(" ({} of {} free)", size(free), size(total)),
            _ => String::new(),
        };
        lines.push(format!("{:10} {}, {}, {kind}{memory}, {types}", gpu.device, gpu.name, gpu.driver));
    }
    let auto = &devices.auto;
    lines.push(format!("auto       --device {} --dtype {}: {}", auto.device, auto.dtype, auto.kernels));
    lines.push(format!("           {}\n", auto.reason));
    lines.join("\n")
}
