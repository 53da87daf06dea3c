//! `kiln devices`: what this machine has, and what Kiln would do with it.

use kiln_engine::{Devices, devices};

use crate::args::DevicesArgs;

/// Runs the command.
pub fn run(args: &DevicesArgs) {
    let devices = devices();
    if args.json {
        println!("{:#}", serde_json::json!(devices));
    } else {
        print(&devices);
    }
}

fn print(devices: &Devices) {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    println!("processor  {}, {} threads", devices.processor, devices.threads);
    println!("           {}", devices.features.join(" "));
    if let (Some(total), Some(available)) = (devices.memory_total, devices.memory_available) {
        println!("memory     {}, {} available", gib(total), gib(available));
    }
    println!("cuda       {}", devices.cuda);
    for card in &devices.cards {
        println!(
            "cuda:{}     {}, compute capability {}, {} multiprocessors, {} of {} free",
            card.ordinal,
            card.name,
            card.compute_capability,
            card.multiprocessors,
            gib(card.memory_free as u64),
            gib(card.memory_total as u64),
        );
    }
    println!("auto       --device {} --dtype {}: {}", devices.auto.device, devices.auto.dtype, devices.auto.kernels);
    println!("           {}", devices.auto.reason);
}
