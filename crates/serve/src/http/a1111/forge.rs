//! Fields that Forge added for flow models (`modules/api/models.py`).

use kiln_engine::ModelFolder;
use serde_json::{Map, Value, json};

/// Moves `distilled_cfg_scale` into the fields of a job of Kiln, for a model that takes this guidance. Clients of Forge send it
/// for every model: for others it stays among the fields that are left out.
pub(super) fn take(fields: &mut Map<String, Value>, model: &ModelFolder, job: &mut Map<String, Value>) {
    if !model.takes_guidance() {
        return;
    }
    if let Some(guidance) = fields.remove("distilled_cfg_scale") {
        job.insert("guidance".into(), guidance);
    }
}

/// Sets a flow model's own guidance scale in a request without one. The usual 7 of that program would run models without
/// classifier-free guidance twice a step, with results that no one trained them for. `has_scale`: an infotext sets it.
pub(super) fn fill(fields: &mut Map<String, Value>, model: &ModelFolder, has_scale: bool) {
    if model.scheduler_config().is_flow() && !fields.contains_key("cfg_scale") && !has_scale {
        fields.insert("cfg_scale".into(), json!(model.defaults().cfg_scale));
    }
}

#[cfg(test)]
mod tests {
    use kiln_testkit::{fixtures, repository};

    use super::*;

    #[test]
    fn guidance_is_that_of_the_model() {
        let object = |value: Value| value.as_object().cloned().unwrap_or_default();
        let flow = ModelFolder::open(&repository().join("models/emoji-sd3")).unwrap();
        let other = ModelFolder::open(&fixtures("models/sd1")).unwrap();
        let filled = |model: &ModelFolder, fields: Value, has_scale: bool| {
            let mut fields = object(fields);
            fill(&mut fields, model, has_scale);
            fields.get("cfg_scale").cloned()
        };
        assert_eq!(filled(&flow, json!({}), false), Some(json!(3.0)));
        assert_eq!(filled(&flow, json!({ "cfg_scale": 5 }), false), Some(json!(5)));
        assert_eq!(filled(&flow, json!({}), true), None);
        assert_eq!(filled(&other, json!({}), false), None);
        let (mut fields, mut job) = (object(json!({ "distilled_cfg_scale": 3.5 })), Map::new());
        take(&mut fields, &flow, &mut job);
        assert!(fields.len() == 1 && job.is_empty(), "this model takes no such guidance");
    }
}
