//! `kiln plan`: the memory of a run in every mode, before anything is loaded.

use kiln_engine::{
    Architecture, BatchSize, ByteSize, ExecutionTarget, HostWeights, ModelFolder, Pass, Plan, PlanReport, Planner,
    RefinerOptions, Request, Result, Room, StagePlan, Workload, control_configs, locate_model, prompt_plans,
};

use crate::args::PlanArgs;
use crate::output::{print, print_json};
use crate::table::table;

/// Runs the command. If no plan fits, an error follows the table.
pub fn run(args: &PlanArgs) -> Result<()> {
    args.start_threads()?;
    let setup = args.setup();
    setup.check()?;
    let (mut on, memory) = ExecutionTarget::with_memory(&setup);
    let room = on.room(&setup.memory, memory);
    let on_gpu = on.target.is_gpu();
    let (name, planner) = match args.preset {
        Some(preset) => {
            let planner = Planner::of_configurations(&Architecture::preset(preset)?)?;
            (preset.id().into(), planner.with_8_bits(setup.scaled_layers(None, on_gpu)?))
        }
        None => {
            let model = ModelFolder::open(&locate_model(args.model.as_deref())?)?;
            let layers = setup.scaled_layers(Some(&model), on_gpu)?;
            let planner = Planner::new(&model, setup.taesd.as_deref())?.with_8_bits(layers);
            let mut planner = planner.with_stored_types(&model, setup.keeps_stored());
            planner.set_controls(&control_configs(&model, args.controls.iter().map(|control| control.net.as_path()))?);
            planner.set_prompts(prompt_plans(&model, &args.ip_adapters)?);
            on = on.with_host_weights(HostWeights::of(&model.files().denoiser_files()));
            (model.name(), planner)
        }
    };
    let refiner = args.refiner.as_deref().map(|path| ModelFolder::open(&locate_model(Some(path))?)).transpose()?;
    let planner = planner.with_refiner(refiner.as_ref())?;
    on = planner.place_texts(on, &setup.memory, memory)?;
    let mut work = planner.work(args.size(), args.steps, args.batch())?;
    work.encodes_image |= args.img2img;
    let request = Request {
        controls: args.controls.clone(),
        ip_adapters: args.ip_adapters.clone(),
        refiner: args.refiner.clone(),
        ..args.network.request()
    };
    work = planner.with_network(work, &request)?;
    if refiner.is_some() {
        work.refiner_steps = Workload::refined(work.steps, RefinerOptions::default().switch);
    }
    if let Some(scale) = args.hires_scale {
        work = planner.with_second_pass(work, scale, &args.hires_upscaler)?;
    }
    if args.batch_size == BatchSize::Auto {
        work.batch_size =
            planner.batch_size(&work, on, room.unwrap_or(Room::given(usize::MAX)), usize::MAX)?.batch_size;
    }
    let report = PlanReport::new(&planner, work, on, room)?;
    let refiner = refiner.as_ref().map(ModelFolder::name);
    if args.json {
        print_json(&report.to_json(&name, refiner.as_deref()));
    } else {
        print(&text(&named(&name, refiner.as_deref()), &report));
    }
    report.chosen.map_or(Ok(()), |chosen| chosen.map(drop))
}

/// The model's name, and that of its refiner.
fn named(model: &str, refiner: Option<&str>) -> String {
    refiner.map_or_else(|| model.into(), |refiner| format!("{model} with the refiner {refiner}"))
}

fn text(name: &str, report: &PlanReport) -> String {
    let PlanReport { work, on, room, plans, chosen, .. } = report;
    let Workload { width, height, batch_size, .. } = *work;
    let images = if batch_size == 1 { "one image".into() } else { format!("{batch_size} images") };
    let then = work.second.map(|second| format!(", then {}x{}", second.width, second.height)).unwrap_or_default();
    let mut text = format!("{name}: {images} of {width}x{height}{then}, {} on {}\n\n", report.types(), on.device());
    let heads = [
        "mode",
        "peak stage",
        "peak",
        "weights",
        "ring",
        "activations",
        "workspace",
        "conditions",
        "fragmentation",
        if on.target.is_gpu() { "H2D per step" } else { "read per step" },
        "step, about",
        "",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(plans.iter().map(|plan| row(plan, *room)));
    text += &table(&rows, 2);
    if let Some(HostWeights { room, disk }) = on.host {
        let room = ByteSize(usize::try_from(room).unwrap_or(usize::MAX));
        text += &format!("\nhost memory for weights: {room}; the disk reads {:.2} GB/s\n", disk / 1e9);
    }
    text += &on.link.map_or_else(String::new, |link| format!("\nlink to the GPU: {link}\n"));
    text += &match (room, chosen) {
        (Some(room), Some(Ok(plan))) => {
            format!("\nof {}: {}, {}\n", ByteSize(room.asked()), plan.described(on), ByteSize(plan.peak()))
        }
        (Some(_), _) => String::new(),
        (None, _) => "\nno such GPU on this machine; set its memory with --vram-budget\n".into(),
    };
    text
}

/// A time in the unit in which it is a small number.
fn time(seconds: f64) -> String {
    if seconds < 10.0 { format!("{:.1} ms", 1e3 * seconds) } else { format!("{seconds:.1} s") }
}

fn row(plan: &Plan, room: Option<Room>) -> Vec<String> {
    let StagePlan { stage, pass, weights, ring, activations, workspace, conditions, waiting } = plan.largest();
    let size = |bytes: usize| if bytes == 0 { "-".into() } else { ByteSize(bytes).to_string() };
    let copied = match plan.copied_per_step {
        0 => "-".into(),
        bytes => {
            let read = match plan.read_per_step {
                0 => String::new(),
                read => format!(", {} from the disk", ByteSize(read)),
            };
            format!("{}, {}{read}", ByteSize(bytes), time(plan.copy_seconds_per_step))
        }
    };
    let fits = room.map_or("", |room| if plan.peak() <= room.bytes { "fits" } else { "too large" });
    let sizes = [plan.peak(), weights, ring, activations, workspace, conditions, waiting].map(size);
    let second = if pass == Pass::Second { " (second pass)" } else { "" };
    let words = [plan.mode.to_string(), format!("{}{second}", stage.id())];
    let step = time(plan.seconds_per_step);
    [words.to_vec(), sizes.to_vec(), vec![copied, step, fits.into()]].concat()
}
