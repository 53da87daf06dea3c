//! A plot of a memory trace: bytes over time, stacked by category, above the stages.

use std::collections::HashMap;
use std::fmt::Write;

use kiln_mempool::{Category, EventKind, MemoryTrace, Pool};

/// The plot's width and its horizontal margins.
const WIDTH: f64 = 1120.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 24.0;
/// The height of the area, and the vertical margins of a panel.
const HEIGHT: f64 = 300.0;
const ABOVE: f64 = 74.0;
const BELOW: f64 = 46.0;
/// The maximum number of columns: more than pixels show no detail.
const COLUMNS: usize = 1000;
/// The minimum width of a band with a label.
const NAMED: f64 = 26.0;

/// The Okabe-Ito colors, which are distinguishable with any color vision.
fn colour(category: Category) -> &'static str {
    match category {
        Category::Weights => "#0072b2",
        Category::Ring => "#56b4e9",
        Category::Cache => "#cc79a7",
        Category::Activations => "#e69f00",
        Category::Workspace => "#009e73",
    }
}

/// Bytes of each category of [`Category::ALL`].
type Levels = [u64; Category::ALL.len()];

/// One pool's memory over time.
struct Panel {
    pool: Pool,
    /// The bytes from each time to the next, in nanoseconds.
    levels: Vec<(u64, Levels)>,
    peak: u64,
}

/// Plots a trace.
pub(super) fn svg(trace: &MemoryTrace, title: &str) -> String {
    let end = trace.events.iter().map(|event| event.nanos).max().unwrap_or(0).max(1);
    let panels: Vec<Panel> = Pool::ALL.into_iter().filter_map(|pool| panel(trace, pool)).collect();
    let stages = stages(trace, end);
    let height = (ABOVE + HEIGHT + BELOW) * panels.len().max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    if panels.is_empty() {
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{ABOVE}\">{}: nothing was allocated</text>", escaped(title));
    }
    for (i, panel) in panels.iter().enumerate() {
        draw(&mut svg, panel, &stages, title, end, i as f64 * (ABOVE + HEIGHT + BELOW));
    }
    svg + "</svg>\n"
}

/// The memory of one pool, if the trace has events of it.
fn panel(trace: &MemoryTrace, pool: Pool) -> Option<Panel> {
    let mut live: HashMap<u64, (usize, u64)> = HashMap::new();
    let (mut now, mut peak, mut levels) = (Levels::default(), 0, vec![(0, Levels::default())]);
    for event in &trace.events {
        match event.what {
            EventKind::Allocated { pool: of, id, bytes, category } if of == pool => {
                let index = Category::ALL.iter().position(|&known| known == category).unwrap_or(0);
                live.insert(id, (index, bytes));
                now[index] = now[index].saturating_add(bytes);
            }
            EventKind::Freed { id } => {
                let Some((index, bytes)) = live.remove(&id) else { continue };
                now[index] = now[index].saturating_sub(bytes);
            }
            _ => continue,
        }
        peak = now.iter().sum::<u64>().max(peak);
        levels.push((event.nanos, now));
    }
    (peak > 0).then_some(Panel { pool, levels, peak })
}

/// Start, end and name of every stage.
fn stages(trace: &MemoryTrace, end: u64) -> Vec<(u64, u64, &str)> {
    let mut stages: Vec<(u64, u64, &str)> = Vec::new();
    for event in &trace.events {
        let EventKind::Stage { name } = &event.what else { continue };
        match stages.last_mut() {
            Some(last) if last.2 == name => continue,
            Some(last) => last.1 = event.nanos,
            None => {}
        }
        stages.push((event.nanos, end, name));
    }
    stages
}

/// The maximum of each column; a column without events has the value before it.
fn columns(panel: &Panel, end: u64) -> Vec<Levels> {
    let mut columns = Vec::with_capacity(COLUMNS);
    let (mut next, mut now) = (0, Levels::default());
    for i in 0..COLUMNS as u128 {
        let until = (u128::from(end) * (i + 1) / COLUMNS as u128) as u64;
        let mut most = now;
        while let Some(&(at, levels)) = panel.levels.get(next).filter(|(at, _)| *at <= until) {
            debug_assert!(at <= until);
            now = levels;
            if now.iter().sum::<u64>() >= most.iter().sum() {
                most = now;
            }
            next += 1;
        }
        columns.push(most);
    }
    columns
}

fn draw(svg: &mut String, panel: &Panel, stages: &[(u64, u64, &str)], title: &str, end: u64, top: f64) {
    let (from, to, bottom) = (LEFT, WIDTH - RIGHT, top + ABOVE + HEIGHT);
    let x = |nanos: u64| from + (to - from) * nanos as f64 / end as f64;
    let (step, unit, scale) = axis(panel.peak);
    let highest = (panel.peak as f64 / step).ceil() * step;
    let y = |bytes: f64| bottom - HEIGHT * bytes / highest;

    let peak = panel.peak as f64 / scale;
    let _ = writeln!(
        svg,
        "<text x=\"{from}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\">{}: {} memory, peak {peak:.1} {unit}</text>",
        top + 24.0,
        escaped(title),
        panel.pool.id()
    );
    for (i, &(start, stop, name)) in stages.iter().enumerate() {
        let (left, width) = (x(start), x(stop) - x(start));
        let fill = if i % 2 == 0 { "#e9e9e9" } else { "#f7f7f7" };
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>",
            top + ABOVE - 18.0,
            HEIGHT + 18.0
        );
        if width >= NAMED + 4.0 * name.len() as f64 {
            let (middle, line) = (left + width / 2.0, top + ABOVE - 5.0);
            let name = escaped(name);
            let _ = writeln!(svg, "<text x=\"{middle:.1}\" y=\"{line:.1}\" text-anchor=\"middle\">{name}</text>");
        }
    }
    let columns = columns(panel, end);
    let width = (to - from) / COLUMNS as f64;
    let mut below = vec![0u64; COLUMNS];
    for (i, &category) in Category::ALL.iter().enumerate() {
        if columns.iter().all(|levels| levels[i] == 0) {
            continue;
        }
        // Along the upper edge and back along the lower edge, with a step for each column whose height changes.
        let above: Vec<u64> = below.iter().zip(&columns).map(|(below, levels)| below + levels[i]).collect();
        let mut path = String::new();
        let mut edge = |heights: &[u64], order: &mut dyn Iterator<Item = usize>, back: bool| {
            let mut last = None;
            for column in order {
                if last.replace(heights[column]) == Some(heights[column]) && column > 0 && column + 1 < COLUMNS {
                    let same = if back { heights.get(column - 1) } else { heights.get(column + 1) };
                    if same == Some(&heights[column]) {
                        continue;
                    }
                }
                let (left, right) = (from + width * column as f64, from + width * (column + 1) as f64);
                let (first, second) = if back { (right, left) } else { (left, right) };
                let height = y(heights[column] as f64);
                let letter = if path.is_empty() { 'M' } else { 'L' };
                let _ = write!(path, "{letter}{first:.1} {height:.1}L{second:.1} {height:.1}");
            }
        };
        edge(&above, &mut (0..COLUMNS), false);
        edge(&below, &mut (0..COLUMNS).rev(), true);
        let _ = writeln!(svg, "<path d=\"{path}Z\" fill=\"{}\"/>", colour(category));
        below = above;
    }
    let mut level = 0.0;
    while level <= highest + step / 2.0 {
        let (line, value) = (y(level), level / scale);
        let digits = usize::from(step / scale < 1.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{from} {line:.1}H{to}\" stroke=\"#000\" stroke-opacity=\"0.12\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.digits$} {unit}</text>",
            from - 8.0,
            line + 4.0
        );
        level += step;
    }
    let seconds = end as f64 * 1e-9;
    let tick = round_step(seconds / 8.0, 10.0);
    let mut at = 0.0;
    while at <= seconds {
        let place = from + (to - from) * at / seconds;
        let label = if tick >= 1.0 { format!("{at:.0} s") } else { format!("{:.0} ms", at * 1e3) };
        let _ = writeln!(
            svg,
            "<path d=\"M{place:.1} {bottom}v5\" stroke=\"#222\"/>\
             <text x=\"{place:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 19.0
        );
        at += tick;
    }
    let _ = writeln!(svg, "<path d=\"M{from} {bottom}H{to}\" stroke=\"#222\"/>");
    let mut place = from;
    for (i, &category) in Category::ALL.iter().enumerate() {
        if columns.iter().any(|levels| levels[i] > 0) {
            let line = top + 42.0;
            let _ = writeln!(
                svg,
                "<rect x=\"{place:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\" fill=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{line:.1}\">{}</text>",
                line - 10.0,
                colour(category),
                place + 16.0,
                category.id()
            );
            place += 42.0 + 7.0 * category.id().len() as f64;
        }
    }
}

/// The distance of grid lines, and the name and bytes of the unit.
fn axis(peak: u64) -> (f64, &'static str, f64) {
    let (unit, scale) = match peak {
        0..0x10_0000 => ("KiB", 1024.0),
        0x10_0000..0x2_8000_0000 if peak < 0x8000_0000 => ("MiB", f64::from(1 << 20)),
        _ => ("GiB", f64::from(1 << 30)),
    };
    (round_step(peak as f64 / scale / 5.0, 10.0) * scale, unit, scale)
}

/// 1, 2 or 5 times a power of `base` that is at least `step`.
fn round_step(step: f64, base: f64) -> f64 {
    let power = base.powf(step.max(f64::MIN_POSITIVE).log(base).floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|times| times * power >= step).unwrap_or(base);
    times * power
}

fn escaped(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use kiln_mempool::MemoryEvent;

    use super::*;

    fn trace() -> MemoryTrace {
        let allocated =
            |id, category, mib: u64| EventKind::Allocated { pool: Pool::Device, id, bytes: mib << 20, category };
        let stage = |name: &str| EventKind::Stage { name: name.into() };
        let what = [
            stage("load <x>"),
            allocated(1, Category::Weights, 300),
            stage("denoise"),
            allocated(2, Category::Activations, 100),
            EventKind::Freed { id: 2 },
            EventKind::Freed { id: 77 },
        ];
        let events =
            what.into_iter().enumerate().map(|(i, what)| MemoryEvent { nanos: i as u64 * 1_000_000_000, what });
        MemoryTrace { events: events.collect(), lost: 0 }
    }

    #[test]
    fn a_plot_names_pools_stages_and_categories() {
        let svg = svg(&trace(), "a & b");
        for text in ["a &amp; b: device memory, peak 400.0 MiB", "load &lt;x&gt;", ">denoise<", ">weights<", ">4 s<"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        assert!(!svg.contains("host memory") && !svg.contains(">ring<") && !svg.contains("NaN"));
        assert_eq!((svg.matches("<svg").count(), svg.matches("</svg>").count()), (1, 1));
    }

    #[test]
    fn a_column_shows_its_maximum() {
        let panel = panel(&trace(), Pool::Device).unwrap();
        let columns = columns(&panel, 5_000_000_000);
        assert_eq!(panel.peak, 400 << 20);
        let sums: Vec<u64> = columns.iter().map(|levels| levels.iter().sum::<u64>() >> 20).collect();
        assert_eq!((sums[0], sums[300], sums[600], sums[700], sums[999]), (0, 300, 400, 400, 300));
    }

    #[test]
    fn an_empty_trace_is_plotted() {
        assert!(svg(&MemoryTrace::default(), "none").contains("nothing was allocated"));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(
            [0.3, 1.0, 1.2, 4.0, 7.0, 70.0].map(|step| round_step(step, 10.0)),
            [0.5, 1.0, 2.0, 5.0, 10.0, 100.0]
        );
    }
}
