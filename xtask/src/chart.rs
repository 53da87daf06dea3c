//! The README's bar chart, generated from `benches/speed.json` as an SVG without scripts or embedded fonts.

use serde::Deserialize;

use crate::Result;
use crate::workspace::{read, root};

const DATA: &str = "benches/speed.json";
const CHART: &str = "assets/speed.svg";

const WIDTH: usize = 640;
const LABEL_WIDTH: usize = 190;
/// The width of the longest bar. The rest of the line has room for its number.
const BAR_WIDTH: f64 = 370.0;
const LINE_HEIGHT: usize = 19;

#[derive(Deserialize)]
struct Chart {
    title: String,
    /// Versions and dates of the measurements.
    note: String,
    groups: Vec<Group>,
}

/// Bars on one scale.
#[derive(Deserialize)]
struct Group {
    name: String,
    /// Program and milliseconds.
    bars: Vec<(String, f64)>,
}

/// Writes the chart.
pub fn write() -> Result {
    std::fs::write(root().join(CHART), drawn()?)?;
    Ok(())
}

fn drawn() -> Result<String> {
    Ok(svg(&serde_json::from_str(&read(&root().join(DATA))?)?))
}

fn svg(chart: &Chart) -> String {
    let mut body = String::new();
    let mut y = 28;
    body += &format!("<text class=\"title\" x=\"16\" y=\"{y}\">{}</text>\n", escaped(&chart.title));
    for group in &chart.groups {
        y += 29;
        body += &format!("<text class=\"group\" x=\"16\" y=\"{y}\">{}</text>\n", escaped(&group.name));
        let longest = group.bars.iter().map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
        for (name, value) in &group.bars {
            y += LINE_HEIGHT;
            let class = if name.starts_with("Kiln") { "kiln" } else { "other" };
            let width = (value / longest * BAR_WIDTH).max(2.0);
            let (top, end) = (y - 11, LABEL_WIDTH as f64 + 8.0 + width);
            body += &format!("<text x=\"{LABEL_WIDTH}\" y=\"{y}\" text-anchor=\"end\">{}</text>", escaped(name));
            let bar = format!("x=\"{}\" y=\"{top}\" width=\"{width:.1}\" height=\"13\"", LABEL_WIDTH + 8);
            body += &format!("<rect class=\"{class}\" {bar} rx=\"2\"/>");
            body += &format!("<text x=\"{:.1}\" y=\"{y}\">{value}</text>\n", end + 6.0);
        }
    }
    y += 34;
    for line in wrapped(&chart.note, 96) {
        body += &format!("<text class=\"note\" x=\"16\" y=\"{y}\">{}</text>\n", escaped(&line));
        y += 15;
    }
    let head = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y}\" width=\"{WIDTH}\" height=\"{y}\">"
    );
    // A page that says nothing of its colors is light. All colors are readable on a dark one, too.
    let style = "text { font: 12px system-ui, sans-serif; fill: #59636e } .title { font-size: 13px; font-weight: bold } \
                 .group { font-weight: bold } .note { font-size: 10px } .kiln { fill: #e8590c } .other { fill: #8d99ae } \
                 @media (prefers-color-scheme: dark) { text { fill: #b0b8c4 } }";
    format!("{head}\n<style>{style}</style>\n{body}</svg>\n")
}

/// Lines of at most `columns` characters where words allow it.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= columns => *line = format!("{line} {word}"),
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_figures() {
        let bars = vec![("Kiln".into(), 5.0), ("a < b".into(), 20.0)];
        let groups = vec![Group { name: "step".into(), bars }];
        let svg = svg(&Chart { title: "t".into(), note: "n".into(), groups });
        assert!(svg.contains("class=\"kiln\" x=\"198\" y=\"65\" width=\"92.5\""), "{svg}");
        assert!(svg.contains("width=\"370.0\"") && svg.contains("a &lt; b"), "{svg}");
    }

    #[test]
    fn the_committed_chart_shows_the_committed_figures() {
        // A checkout on Windows may have other line endings.
        let committed = read(&root().join(CHART)).unwrap().replace('\r', "");
        assert_eq!(committed, drawn().unwrap(), "run `cargo xtask chart`");
    }
}
