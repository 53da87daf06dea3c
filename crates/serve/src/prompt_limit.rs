//! The limit on the lengths of prompts, before anything is parsed or encoded.

use kiln_engine::{Job, LongPrompt, PromptCounter, Request};

use crate::error::Refused;

/// The bytes of a token that a prompt may have on average, with brackets, weights and spaces. English has 4 or 5.
const BYTES_OF_TOKEN: usize = 16;

/// The most bytes of a prompt with at most `tokens` tokens.
pub(crate) fn most_bytes(tokens: usize) -> usize {
    tokens.saturating_mul(BYTES_OF_TOKEN)
}

/// Refuses prompts that are far too long by their bytes: parsing costs time, too.
///
/// # Errors
/// [`Refused`] with the field.
pub(crate) fn check_bytes(request: &Request, tokens: usize) -> Result<(), Refused> {
    let most = most_bytes(tokens);
    let prompts = [
        ("prompt", Some(&request.prompt)),
        ("negative_prompt", request.negative_prompt.as_ref()),
        ("hires_prompt", request.hires_prompt.as_ref()),
        ("hires_negative_prompt", request.hires_negative_prompt.as_ref()),
    ];
    let blended = request.regions.iter().flat_map(|region| &region.blend);
    let prompts = prompts.into_iter().chain(blended.map(|blend| ("regions", Some(&blend.text))));
    match prompts.into_iter().find_map(|(name, text)| Some((name, text?.len())).filter(|(_, found)| *found > most)) {
        None => Ok(()),
        Some((name, found)) => {
            let expected = format!("at most {most}: this server takes prompts of {tokens} tokens (`max_tokens`)");
            Err(Refused::value(name, format!("a text of {found} bytes"), expected))
        }
    }
}

/// Refuses a prompt of a job that needs more tokens.
///
/// # Errors
/// [`Refused`] with the field, and for tokenizers that cannot be read.
pub(crate) fn check(counter: &PromptCounter, job: &Job, most: usize) -> Result<(), Refused> {
    match counter.longer_than(job, most)? {
        None => Ok(()),
        Some(LongPrompt { field, tokens }) => {
            let expected = format!("at most {most}, the limit of this server (`max_tokens`); every chunk has 75");
            Err(Refused::value(field, format!("{tokens} tokens long or more"), expected))
        }
    }
}
