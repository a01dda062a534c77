//! A report's timeline as a picture: SVG for a file, block characters for a terminal.

use std::fmt::Write;

use crate::{Report, TimelinePoint};

/// A curve of the picture.
struct Curve {
    name: &'static str,
    colour: &'static str,
    value: fn(&TimelinePoint) -> f64,
}

const CURVES: [Curve; 4] = [
    Curve { name: "waiting requests", colour: "#c0392b", value: |point| f64::from(point.waiting) },
    Curve { name: "running requests", colour: "#2471a3", value: |point| f64::from(point.running) },
    Curve { name: "KV in use, 1/1000", colour: "#1e8449", value: |point| f64::from(point.kv_used_permille) },
    Curve { name: "step, ms", colour: "#7d3c98", value: |point| point.step_ms as f64 },
];

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 120.0;
const MARGIN: f64 = 24.0;

/// One panel per curve, one line per report, over virtual time.
pub fn svg(reports: &[(String, Report)]) -> String {
    let end_ms = reports.iter().flat_map(|(_, report)| &report.timeline).map(|point| point.clock_ms).max().unwrap_or(1);
    let height = CURVES.len() as f64 * (HEIGHT + MARGIN) + MARGIN * (1 + reports.len()) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n",
        WIDTH + 2.0 * MARGIN
    );
    for (panel, curve) in CURVES.iter().enumerate() {
        let top = MARGIN + panel as f64 * (HEIGHT + MARGIN);
        let values = reports.iter().flat_map(|(_, report)| report.timeline.iter().map(curve.value));
        let largest = values.fold(1.0, f64::max);
        let title = format!("{} (0 to {largest:.0})", curve.name);
        line(&mut out, &format!("<text x=\"{MARGIN}\" y=\"{}\">{title}</text>", top - 4.0));
        line(
            &mut out,
            &format!(
                "<rect x=\"{MARGIN}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#ccc\"/>"
            ),
        );
        for (index, (_, report)) in reports.iter().enumerate() {
            let mut points = String::new();
            for point in &report.timeline {
                let x = MARGIN + WIDTH * point.clock_ms as f64 / end_ms.max(1) as f64;
                let y = top + HEIGHT * (1.0 - (curve.value)(point) / largest);
                let _ = write!(points, "{x:.1},{y:.1} ");
            }
            let dashes = if index == 0 { String::new() } else { format!(" stroke-dasharray=\"{} 3\"", 2 + 4 * index) };
            let points = points.trim_end();
            line(
                &mut out,
                &format!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{}\"{dashes}/>", curve.colour),
            );
        }
    }
    for (index, (name, report)) in reports.iter().enumerate() {
        let y = height - MARGIN * (reports.len() - index) as f64;
        let name = name.replace('&', "&amp;").replace('<', "&lt;");
        line(&mut out, &format!("<text x=\"{MARGIN}\" y=\"{y}\">{name}: {}</text>", summary(report)));
    }
    out.push_str("</svg>\n");
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn summary(report: &Report) -> String {
    format!(
        "{:.1} requests/s, first token p50 {:.0} ms, token gap p50 {:.1} ms p99 {:.0} ms, balance {:.3}",
        report.throughput.requests_per_s,
        report.ttft_ms.p50,
        report.token_gap_ms.p50,
        report.token_gap_ms.p99,
        report.balance.ratio
    )
}

/// Columns of a curve in a terminal.
const COLUMNS: usize = 64;

/// One line of block characters per curve.
pub fn text(report: &Report) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let end_ms = report.timeline.last().map_or(1, |point| point.clock_ms.max(1));
    let mut out = String::new();
    for curve in &CURVES {
        let mut largest = [0.0f64; COLUMNS];
        for point in &report.timeline {
            let column = (point.clock_ms * (COLUMNS as u64 - 1) / end_ms) as usize;
            largest[column] = largest[column].max((curve.value)(point));
        }
        let top = largest.iter().copied().fold(1.0, f64::max);
        let bars: String = largest.iter().map(|value| BARS[(value / top * 8.0).round() as usize]).collect();
        line(&mut out, &format!("{:>18} {bars} {top:.0}", curve.name));
    }
    out
}
