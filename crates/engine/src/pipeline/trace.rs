//! The operators of one denoiser step with their times, as a file for <https://ui.perfetto.dev> and `chrome://tracing`.
//!
//! The file is in the trace-event format: an object whose `traceEvents` are complete events (`"ph": "X"`, with `ts` and
//! `dur` in microseconds) and the names of processes and threads. A step is a process; its operators are on one thread
//! and the whole step is on another, so that gaps between operators are visible.

use std::path::Path;

use candle_core::{DType, Device};
use kiln_files::{FileRules, PlannedFile};
use kiln_ops::trace::{Operator, Trace};
use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::machine::Machine;

/// The number of operators in the log.
const MOST: usize = 5;
/// The thread of the whole step, and the thread of its operators.
const STEP: u32 = 1;
const OPERATORS: u32 = 2;

/// A traced step.
#[derive(Debug, Clone)]
pub struct StepTrace {
    /// The model's name, and how many images of which size the step made at once.
    title: String,
    /// The device.
    machine: Machine,
    dtype: &'static str,
    /// The index of the step in its run, and whether it was warm.
    how: String,
    trace: Trace,
}

impl StepTrace {
    /// A trace with a title, of a step on `device` in `dtype`; `step` is the number of steps before it. Its slowest operators
    /// are logged.
    pub fn new(title: String, device: &Device, dtype: DType, step: usize, trace: Trace) -> Self {
        let mut how = match step {
            0 => "the first step: libraries and memory were not warm".to_string(),
            _ => "a warm step".to_string(),
        };
        if kiln_ops::graph::is_recordable(device) {
            how += "; its operators were launched one by one, with events around each. \
                Other steps replay one recorded graph and take less time";
        }
        let traced = Self { title, machine: Machine::new(device), dtype: dtype.as_str(), how, trace };
        traced.log();
        traced
    }

    /// Logs the slowest operators.
    fn log(&self) {
        let (whole, rows) = (self.trace.duration, by_operator(&self.trace.operators));
        tracing::info!("{}: the traced step took {:.3} ms, including", self.title, whole * 1e-3);
        let width = rows.iter().take(MOST).map(|row| row.name.len()).max().unwrap_or(0);
        for Row { name, calls, microseconds } in rows.iter().take(MOST) {
            let (milliseconds, share) = (microseconds * 1e-3, 100.0 * microseconds / whole.max(f64::MIN_POSITIVE));
            tracing::info!("  {name:width$}  {calls:5} calls  {milliseconds:10.3} ms  {share:5.1} %");
        }
    }

    /// The events of this step as process `pid`.
    fn events(&self, pid: usize) -> Vec<Value> {
        let named = |what: &str, tid: u32, name: &str| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } });
        let mut events = vec![
            named("process_name", STEP, &self.title),
            named("thread_name", STEP, "step"),
            named("thread_name", OPERATORS, "operators"),
            json!({
                "ph": "X", "name": "step", "cat": "step", "pid": pid, "tid": STEP,
                "ts": 0.0, "dur": self.trace.duration,
                "args": {
                    "what": self.title,
                    "how": self.how,
                    "device": self.machine.device,
                    "processor": self.machine.processor,
                    "threads": self.machine.threads,
                    "dtype": self.dtype,
                },
            }),
        ];
        events.extend(self.trace.operators.iter().map(|operator| {
            json!({
                "ph": "X", "name": operator.name, "cat": "operator", "pid": pid, "tid": OPERATORS,
                "ts": operator.start, "dur": operator.duration, "args": arguments(operator),
            })
        }));
        events
    }
}

/// The attributes of an operator in a viewer.
fn arguments(operator: &Operator) -> Value {
    let shapes = operator.operands.iter().map(|operand| (operand.name.to_string(), json!(operand.shape)));
    let mut shapes: Map<String, Value> = shapes.collect();
    shapes.insert("result".into(), json!(operator.result));
    let dtype = operator.operands.first().map_or(operator.dtype, |operand| operand.dtype);
    let mut arguments = json!({ "shapes": shapes, "dtype": dtype.as_str(), "GB": operator.bytes * 1e-9 });
    // One a microsecond is 10^6 a second; rates are in 10^9.
    let per_second = |value: f64| (operator.duration > 0.0).then(|| value / operator.duration * 1e-3);
    let speeds = [
        ("GFLOP", Some(operator.flop * 1e-9).filter(|_| operator.flop > 0.0)),
        ("GFLOP/s", per_second(operator.flop).filter(|_| operator.flop > 0.0)),
        ("GB/s", per_second(operator.bytes)),
    ];
    for (name, value) in speeds.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        arguments[name] = json!(value);
    }
    if let Some(config) = &operator.config {
        arguments["config"] = json!(config);
    }
    arguments
}

/// All calls of an operator.
struct Row {
    name: &'static str,
    calls: usize,
    microseconds: f64,
}

/// The operators in descending order of time.
fn by_operator(operators: &[Operator]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for operator in operators {
        let i = rows.iter().position(|row| row.name == operator.name).unwrap_or(rows.len());
        if i == rows.len() {
            rows.push(Row { name: operator.name, calls: 0, microseconds: 0.0 });
        }
        rows[i].calls += 1;
        rows[i].microseconds += operator.duration;
    }
    rows.sort_by(|a, b| b.microseconds.total_cmp(&a.microseconds));
    rows
}

/// A JSON file for traces.
#[derive(Debug)]
pub struct TraceFile(PlannedFile);

impl TraceFile {
    /// Plans a file at `path`; an existing file will be replaced.
    ///
    /// # Errors
    /// See [`PlannedFile`]: the folder is missing or not writable, or the name is a folder's or has another
    /// extension than `.json`.
    pub fn plan(path: &Path) -> Result<Self> {
        let rules = FileRules { field: "trace", what: "the trace", extensions: &["json"], overwrite: true };
        Ok(Self(PlannedFile::plan(path, rules)?))
    }

    /// The file.
    pub fn file(&self) -> &PlannedFile {
        &self.0
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// [`crate::Error::Files`].
    pub fn write<'a>(self, steps: impl IntoIterator<Item = &'a StepTrace>) -> Result<()> {
        let events: Vec<Value> = steps.into_iter().zip(1..).flat_map(|(step, pid)| step.events(pid)).collect();
        let trace = json!({
            "displayTimeUnit": "ms",
            "otherData": { "program": format!("kiln {}", env!("CARGO_PKG_VERSION")) },
            "traceEvents": events,
        });
        let written = self.0.write(|to| {
            serde_json::to_writer(&mut *to, &trace)?;
            to.write_all(b"\n")
        });
        Ok(written?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator(name: &'static str, start: f64, duration: f64, flop: f64) -> Operator {
        let (operands, result, config) = (Vec::new(), vec![2, 3], None);
        Operator { name, start, duration, operands, result, dtype: DType::F16, config, flop, bytes: 4e6 }
    }

    #[test]
    fn rates_are_in_1e9_per_second() {
        let arguments = arguments(&operator("linear", 0.0, 2000.0, 3e9));
        for (name, expected) in [("GFLOP", 3.0), ("GFLOP/s", 1500.0), ("GB", 0.004), ("GB/s", 2.0)] {
            let found = arguments[name].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() < 1e-12, "{name} is {found}");
        }
        assert_eq!((&arguments["shapes"]["result"], &arguments["dtype"]), (&json!([2, 3]), &json!("f16")));
    }

    #[test]
    fn operators_without_flops_or_time_have_no_rate() {
        let arguments = arguments(&operator("concat_channels", 0.0, 0.0, 0.0));
        for name in ["GFLOP", "GFLOP/s", "GB/s", "config"] {
            assert!(arguments.get(name).is_none(), "{arguments}");
        }
    }

    #[test]
    fn operators_are_sorted_by_time() {
        let calls = [("linear", 2.0), ("conv2d", 3.0), ("linear", 2.0)];
        let rows = by_operator(&calls.map(|(name, duration)| operator(name, 0.0, duration, 1.0)));
        let rows: Vec<_> = rows.iter().map(|row| (row.name, row.calls, row.microseconds)).collect();
        assert_eq!(rows, [("linear", 2, 4.0), ("conv2d", 1, 3.0)]);
    }
}
