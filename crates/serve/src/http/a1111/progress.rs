//! Progress, interrupt and skip: of the one job that a client of that program has.

use axum::extract::{Query, State};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::{Client, Shared};

/// The query of `progress`.
#[derive(Deserialize)]
pub(super) struct Asked {
    /// `true` or `True`, as Python writes it.
    skip_current_image: Option<String>,
}

/// How far the oldest job is that the client sees.
pub(super) async fn progress(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Query(asked): Query<Asked>,
) -> Json<Value> {
    let Some((entry, finished, all)) = app.web_jobs.current(|entry| app.sees(&client, entry)) else {
        return Json(json!({
            "progress": 0.0, "eta_relative": 0.0, "current_image": null, "textinfo": null,
            "state": {
                "skipped": false, "interrupted": false, "stopping_generation": false, "job": "", "job_count": 0,
                "job_timestamp": "0", "job_no": 0, "sampling_step": 0, "sampling_steps": 0,
            },
        }));
    };
    let (step, steps, eta) = entry.progress();
    let batches = entry.batches.max(1);
    let each = (steps / batches).max(1);
    let skips = asked.skip_current_image.is_some_and(|text| text.eq_ignore_ascii_case("true"));
    if !skips {
        entry.control.ask_for_preview();
    }
    let preview = entry.preview().filter(|_| !skips);
    // A request with several input images has a job for each result.
    let done = finished as f64 + step as f64 / steps.max(1) as f64;
    let progress = (0.01 + done / all.len().max(1) as f64).min(1.0);
    let jobs = batches * all.len().max(1);
    Json(json!({
        "progress": progress, "eta_relative": eta.map_or(0.0, |eta| eta.as_secs_f64()),
        "current_image": preview.map(|preview| preview.data.clone()), "textinfo": null,
        "state": {
            "skipped": false, "interrupted": entry.control.is_finishing(),
            "stopping_generation": entry.control.is_finishing(), "job": entry.id, "job_count": jobs,
            "job_timestamp": timestamp(entry.created()), "job_no": (finished * batches + step / each).min(jobs - 1),
            "sampling_step": step % each, "sampling_steps": each,
        },
    }))
}

/// Ends the jobs of the oldest request with what is there.
pub(super) async fn interrupt(State(app): Shared, Extension(client): Extension<Client>) -> Json<Value> {
    if let Some((_, _, all)) = app.web_jobs.current(|entry| app.sees(&client, entry)) {
        all.iter().for_each(|entry| entry.control.finish());
    }
    Json(json!({}))
}

/// Ends the batch of the oldest job that runs.
pub(super) async fn skip(State(app): Shared, Extension(client): Extension<Client>) -> Json<Value> {
    if let Some((entry, ..)) = app.web_jobs.current(|entry| app.sees(&client, entry)) {
        entry.control.skip();
    }
    Json(Value::Null)
}

/// A point in time as that program writes it, `YYYYmmddHHMMSS` in UTC. `seconds` are since 1970.
pub(super) fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, in eras of 400 years (Hinnant, "chrono-compatible low-level date algorithms").
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let date = day - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{date:02}{:02}{:02}{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    #[test]
    fn points_in_time_are_dates() {
        assert_eq!(timestamp(0), "19700101000000");
        assert_eq!(timestamp(951_827_696), "20000229123456");
        assert_eq!(timestamp(1_763_812_345), "20251122115225");
    }
}
