//! The length of a prompt in tokens.

use axum::Json;
use axum::extract::State;
use kiln_engine::TokenCount;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::jobs::ErrorBody;
use super::{Payload, Shared};
use crate::error::{Refused, RefusedKind};

/// The most bytes of a body: many times the length of a useful prompt, and read in a moment.
const MAX_BODY: usize = 32 << 10;

/// Texts whose tokens are counted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TokensRequest)]
pub(super) struct TokensBody {
    prompt: Option<String>,
    negative_prompt: Option<String>,
    /// The model's name. Default: the first one.
    model: Option<String>,
}

/// The lengths of texts.
#[derive(Serialize, ToSchema)]
#[schema(as = Tokens)]
pub(super) struct TokensView {
    prompt: CountView,
    negative_prompt: CountView,
}

/// The length of a text; where a schedule or `AND` makes several of it, of the longest.
#[derive(Serialize, ToSchema)]
#[schema(as = TokenCount)]
pub(super) struct CountView {
    /// Tokens up to the last one; a chunk that ends early, at a comma or `BREAK`, counts as full.
    tokens: usize,
    /// Tokens for which the chunks have room: 75 for each.
    room: usize,
}

/// Counts the tokens of a prompt with the model's tokenizer.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "lists", request_body = TokensBody,
    responses(
        (status = 200, description = "The lengths.", body = TokensView),
        (status = 400, description = "It is no such request.", body = ErrorBody),
        (status = 404, description = "There is no such model.", body = ErrorBody),
        (status = 413, description = "The texts are too long.", body = ErrorBody),
    )
)]
pub(super) async fn count(State(app): Shared, Payload(body): Payload) -> Result<Json<TokensView>, Refused> {
    if body.len() > MAX_BODY {
        let message = format!("the texts have {} bytes, expected at most {MAX_BODY}", body.len());
        return Err(Refused::new(RefusedKind::TooLarge, message));
    }
    let TokensBody { prompt, negative_prompt, model } =
        serde_json::from_slice(&body).map_err(|error| Refused::invalid(error.to_string()))?;
    let model = app.models.find(model.as_deref())?.clone();
    let internal = |error: String| Refused::new(RefusedKind::Internal, error);
    let _turn = app.token_turn.acquire().await.map_err(|error| internal(error.to_string()))?;
    let state = app.clone();
    let counted = app.runtime.spawn_blocking(move || {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        state.tokens.count(&model.folder, &text(&prompt), &text(&negative_prompt))
    });
    let [prompt, negative_prompt] = counted.await.map_err(|error| internal(error.to_string()))??.map(CountView::from);
    Ok(Json(TokensView { prompt, negative_prompt }))
}

impl From<TokenCount> for CountView {
    fn from(TokenCount { tokens, room }: TokenCount) -> Self {
        Self { tokens, room }
    }
}
