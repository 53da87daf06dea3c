//! The order of jobs that wait.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::jobs::{ErrorBody, find};
use super::{Client, Payload, Shared, json_body};
use crate::error::Refused;
use crate::jobs::{JobView, NewPlace};

/// The new place of a job: one of the fields.
#[derive(ToSchema)]
pub(super) struct JobMove {
    /// The number of the job before which it is to come.
    #[allow(dead_code)]
    before: Option<String>,
    /// How many of the client's jobs are to come before it, from 0. The last place is taken if fewer wait.
    #[allow(dead_code)]
    position: Option<usize>,
}

/// Moves a job that waits among those of the same client.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/move", tag = "jobs", params(("id" = String, Path, description = "The job's number.")),
    request_body = JobMove,
    responses(
        (status = 200, description = "The job. Its `position` follows with the next step.", body = JobView),
        (status = 400, description = "The job or the other one does not wait.", body = ErrorBody),
        (status = 404, description = "There is none.", body = ErrorBody),
    )
)]
pub(super) async fn move_job(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
    Payload(body): Payload,
) -> Result<Json<JobView>, Refused> {
    let entry = find(&app, &client, &id)?;
    let place = place(json_body::read(&app, body).await?)?;
    app.jobs.move_to(&entry, &place)?;
    Ok(Json(entry.view()))
}

/// The place in a body.
fn place(mut fields: Map<String, Value>) -> Result<NewPlace, Refused> {
    let before = json_body::text(&mut fields, "before")?;
    let position = fields.remove("position");
    if let Some((name, value)) = fields.iter().next() {
        return Err(Refused::value(name, value, "no such field: `before` or `position`"));
    }
    match (before, position) {
        (Some(id), None) => Ok(NewPlace::Before(id)),
        (None, Some(value)) => {
            let position = value.as_u64().and_then(|position| usize::try_from(position).ok());
            position
                .map(NewPlace::Position)
                .ok_or_else(|| Refused::value("position", value, "a whole number of jobs from 0"))
        }
        _ => Err(Refused::invalid("expected one of `before`, a job's number, and `position`, a number of jobs")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_of_both_fields_is_needed() {
        let read = |body: Value| place(body.as_object().cloned().unwrap()).map_err(|refused| refused.message);
        assert_eq!(read(json!({ "before": "a" })), Ok(NewPlace::Before("a".into())));
        assert_eq!(read(json!({ "position": 2 })), Ok(NewPlace::Position(2)));
        for wrong in [json!({}), json!({ "before": "a", "position": 0 })] {
            assert!(read(wrong).unwrap_err().contains("expected one of"));
        }
        assert!(read(json!({ "position": -1 })).unwrap_err().contains("from 0"));
        assert!(read(json!({ "before": 1 })).unwrap_err().contains("before"));
        assert!(read(json!({ "after": "a" })).unwrap_err().contains("after"));
    }
}
