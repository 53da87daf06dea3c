//! Range checks, by the rows of the table.

use kiln_models::{FamilyRef, ModelFolder};

use super::feature::ModelFeature;
use super::row::{OptionKind, OptionRow};
use super::table::{OPTIONS, Request};
use crate::error::{Error, Result};

/// Refuses values out of their rows' ranges. What depends on the model or on other options is checked elsewhere.
///
/// # Errors
/// [`Error::Value`] with the first such option.
pub(crate) fn check(request: &Request) -> Result<()> {
    match out_of_range(request).next() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Refuses options that are set although they have no effect on a model. `ignored` has their names.
///
/// # Errors
/// [`Error::Value`] with the first such option.
pub(crate) fn refuse_ignored(request: &Request, ignored: &[&str]) -> Result<()> {
    let Some(row) = set_of(request, ignored).next() else { return Ok(()) };
    let expected = format!("no value: {NO_EFFECT}");
    Err(Error::Value { name: row.name, found: row.value(request).shown(), expected })
}

/// Why an option of texts is refused.
const NO_EFFECT: &str = "it has no effect on this model's text encoders";

/// The options with these names that are set.
fn set_of(request: &Request, names: &[&str]) -> impl Iterator<Item = &'static OptionRow> {
    OPTIONS.iter().filter(|row| names.contains(&row.name) && !row.value(request).is_default())
}

/// Refuses options that are set and have no meaning for `model`.
///
/// # Errors
/// [`Error::Value`] with the first such option.
pub(crate) fn refuse_foreign(request: &Request, model: &ModelFolder) -> Result<()> {
    let foreign = request.foreign(|feature| feature.is_of(model)).next();
    let Some((row, feature)) = foreign else { return Ok(()) };
    let expected = format!("none: {}", feature.reason(&model.name()));
    Err(Error::Value { name: row.name, found: row.value(request).shown(), expected })
}

fn out_of_range(request: &Request) -> impl Iterator<Item = Error> {
    OPTIONS.iter().filter_map(|row| {
        let value = row.value(request);
        let expected = refusal(row, value.number()?)?;
        Some(Error::Value { name: row.name, found: value.shown(), expected })
    })
}

impl Request {
    /// All values that are out of their ranges, whatever the model, where [`Request::resolve`] gives the first.
    pub fn range_errors(&self) -> Vec<Error> {
        out_of_range(self).collect()
    }

    /// Removes options that have no meaning for `model`, and returns a sentence for each. For settings of an image that was made
    /// with another model.
    pub fn drop_foreign(&mut self, model: &ModelFolder) -> Vec<String> {
        let mut sentences = self.drop_without(|feature| feature.is_of(model), &model.name());
        sentences.extend(self.drop_ignored(model));
        sentences
    }

    /// [`Self::drop_foreign`] for options that no model of `family` can have.
    pub fn drop_foreign_to_family(&mut self, family: FamilyRef) -> Vec<String> {
        self.drop_without(|feature| feature.may_be_of(family), family.label())
    }

    /// Removes options that have no effect on the text encoders of `model`. Returns a sentence for the CLIP layer; the others are the
    /// rules of a program, and not a user's choice.
    pub fn drop_ignored(&mut self, model: &ModelFolder) -> Vec<String> {
        self.drop_named(model.ignored_text_options())
    }

    fn drop_named(&mut self, names: &[&str]) -> Vec<String> {
        let mut sentences = Vec::new();
        for row in set_of(self, names).collect::<Vec<_>>() {
            if row.name == "clip_skip" {
                let key = row.infotext_keys().next().unwrap_or(row.name);
                sentences.push(format!("{key}: {} is left out: {NO_EFFECT}", row.value(self).shown()));
            }
            row.copy(&Self::default(), self);
        }
        sentences
    }

    fn drop_without(&mut self, has: impl Fn(ModelFeature) -> bool, name: &str) -> Vec<String> {
        let foreign: Vec<_> = self.foreign(has).collect();
        let dropped = foreign.into_iter().map(|(row, feature)| {
            let key = row.infotext_keys().next().unwrap_or(row.name);
            let sentence = format!("{key}: {} is left out: {}", row.value(self).shown(), feature.reason(name));
            row.copy(&Self::default(), self);
            sentence
        });
        dropped.collect()
    }

    /// The options that are set, and need a feature that the model lacks.
    fn foreign(&self, has: impl Fn(ModelFeature) -> bool) -> impl Iterator<Item = (&'static OptionRow, ModelFeature)> {
        OPTIONS.iter().filter_map(move |row| {
            let lacked = row.needs.filter(|&feature| !has(feature) && !row.value(self).is_default());
            lacked.map(|feature| (row, feature))
        })
    }
}

/// The expected values instead of `value`; `None` if it is in range.
fn refusal(row: &OptionRow, value: f64) -> Option<String> {
    let (in_range, min, max) = match row.kind {
        OptionKind::Whole { min, max } => {
            ((min as f64..=max as f64).contains(&value), min.to_string(), max.to_string())
        }
        OptionKind::Number { min, max } => ((min..=max).contains(&value), min.to_string(), max.to_string()),
        _ => return None,
    };
    let usual = if row.usual.is_empty() { String::new() } else { format!(" (usual: {})", row.usual) };
    (!in_range).then(|| format!("a number from {min} to {max}{usual}"))
}

#[cfg(test)]
mod tests {
    use kiln_prompt::ChunkCut;

    use super::*;

    #[test]
    fn every_range_is_checked_at_both_ends() {
        for row in OPTIONS {
            let (below, above) = match row.kind {
                OptionKind::Whole { min, max } => (min.checked_sub(1).map(|n| n as f64), max as f64 + 1.0),
                OptionKind::Number { min, max } => (Some(min - 1e-9), max * 1.001 + 0.1),
                _ => continue,
            };
            for value in below.into_iter().chain((above < 1e15).then_some(above)) {
                let mut request = Request::default();
                row.value_mut(&mut request).read(&value.to_string()).unwrap();
                let message = check(&request).unwrap_err().to_string();
                let begin = format!("`{}` is {}, expected a number from ", row.name, row.value(&request).shown());
                assert!(message.starts_with(&begin), "{message}");
            }
        }
        assert!(check(&Request::default()).is_ok());
        let nan = Request { eta: Some(f64::NAN), ..Request::default() };
        assert_eq!(check(&nan).unwrap_err().to_string(), "`eta` is NaN, expected a number from 0 to 100");
    }

    #[test]
    fn options_without_effect_are_refused_by_name() {
        let ignored = kiln_prompt::TextOptions::NAMES;
        assert!(ignored.iter().all(|name| OPTIONS.iter().any(|row| row.name == *name)));
        assert!(refuse_ignored(&Request::default(), &ignored).is_ok());
        let request = Request { clip_skip: Some(2), ..Request::default() };
        assert!(refuse_ignored(&request, &[]).is_ok());
        assert_eq!(
            refuse_ignored(&request, &ignored).unwrap_err().to_string(),
            "`clip_skip` is 2, expected no value: it has no effect on this model's text encoders"
        );
        // Rules of a program go without a word.
        let mut graph = Request { chunk_cut: ChunkCut::Word, ..request };
        assert_eq!(
            graph.drop_named(&ignored),
            ["Clip skip: 2 is left out: it has no effect on this model's text encoders"]
        );
        assert!(refuse_ignored(&graph, &ignored).is_ok());
    }

    /// A value that turns every option on which needs a feature.
    #[test]
    fn options_that_a_model_cannot_have_are_refused_by_their_rows() {
        let model = ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap();
        let mut count = 0;
        for row in OPTIONS.iter().filter(|row| row.needs.is_some_and(|feature| !feature.is_of(&model))) {
            let mut request = Request::default();
            let text = row.kind.samples().remove(0);
            row.value_mut(&mut request).read(&text).unwrap();
            let message = refuse_foreign(&request, &model).unwrap_err().to_string();
            assert!(message.starts_with(&format!("`{}` is ", row.name)), "{message}");
            assert!(message.contains(", expected none: it works with ") && message.contains("sd1"), "{message}");
            let dropped = request.drop_foreign(&model);
            assert!(dropped.len() == 1 && dropped[0].contains(" is left out: it works with "), "{dropped:?}");
            assert_eq!(request, Request::default(), "{}", row.name);
            count += 1;
        }
        assert!(count >= 14, "{count}");
        assert!(
            refuse_foreign(&Request { freeu: Some("1,1,1,1".parse().unwrap()), ..Request::default() }, &model).is_ok()
        );
    }

    #[test]
    fn a_transformer_takes_no_options_of_u_nets() {
        let sd3 = kiln_families::FAMILIES.iter().copied().find(|family| family.id() == "sd3").unwrap();
        let mut request =
            Request { pag_scale: Some(3.0), shift: Some(2.0), slg_scale: Some(2.8), ..Request::default() };
        let kept = Request { pag_scale: None, ..request.clone() };
        assert_eq!(
            request.drop_foreign_to_family(sd3),
            ["PAG scale: 3.0 is left out: it works with U-Nets, and Stable Diffusion 3 has a transformer"]
        );
        assert_eq!(request, kept);
    }

    #[test]
    fn usual_values_are_named() {
        let request = Request { cfg_scale: Some(1e300), ..Request::default() };
        let message = check(&request).unwrap_err().to_string();
        assert_eq!(message, "`cfg_scale` is 1e300, expected a number from 0 to 1000 (usual: 3 to 12)");
    }
}
