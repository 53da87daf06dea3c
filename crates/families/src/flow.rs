//! The rules by which the programs of a family make the noise levels of a flow model.

use kiln_scheduler::{FlowGrid, FlowInputs, FlowMu};
use serde_json::{Value, json};

/// The values that a family adds to the `scheduler_config.json` of a flow model.
///
/// The defaults are those of a model without a flow family of its own: `FlowMatchEulerDiscreteScheduler` alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowRules {
    /// The levels before the shift, which depend on diffusers' pipeline.
    pub grid: FlowGrid,
    /// The exponent of a shift that depends on the size.
    pub mu: FlowMu,
    /// The length of the table of levels in ComfyUI and Forge.
    pub table: usize,
    /// The exponent of these programs' shift for every size, if they do not use the model's shift.
    pub table_mu: Option<f64>,
    /// The side of an image token in pixels.
    pub token_side: usize,
}

impl Default for FlowRules {
    fn default() -> Self {
        Self::of_pipeline(FlowGrid::Ends)
    }
}

impl FlowRules {
    /// The rules of a pipeline with tokens of 16 by 16 pixels, and of programs with a table of 1,000 levels.
    pub(crate) const fn of_pipeline(grid: FlowGrid) -> Self {
        Self { grid, mu: FlowMu::Interpolated, table: 1000, table_mu: None, token_side: 16 }
    }

    /// These rules with a table of `table` levels, whose shift is `exp(mu)` for every size.
    pub(crate) const fn with_table(self, table: usize, mu: f64) -> Self {
        Self { table, table_mu: Some(mu), ..self }
    }

    /// The scheduler's inputs for images of this width and height in pixels, with a static shift if there is one.
    pub fn inputs(&self, (width, height): (usize, usize), shift: Option<f64>) -> FlowInputs {
        let side = self.token_side.max(1);
        let Self { grid, mu, table, table_mu, .. } = *self;
        FlowInputs { image_tokens: Some((width / side) * (height / side)), shift, grid, mu, table, table_mu }
    }
}

/// The `scheduler_config.json` of a flow model with a static shift.
pub(crate) fn static_scheduler(shift: f64) -> Value {
    json!({ "_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": shift })
}

/// The `scheduler_config.json` of FLUX.1 dev and FLUX.2, whose shift depends on the size.
pub(crate) fn dynamic_scheduler() -> Value {
    json!({
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "base_image_seq_len": 256,
        "base_shift": 0.5,
        "max_image_seq_len": 4096,
        "max_shift": 1.15,
        "num_train_timesteps": 1000,
        "shift": 3.0,
        "use_dynamic_shifting": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::FAMILIES;
    use kiln_scheduler::Convention;

    #[test]
    fn tokens_cover_sixteen_pixels() {
        let inputs = FlowRules::default().inputs((96, 72), Some(5.0));
        assert_eq!((inputs.image_tokens, inputs.shift, inputs.grid), (Some(6 * 4), Some(5.0), FlowGrid::Ends));
    }

    #[test]
    fn families_have_their_pipelines_rules() {
        let rules = |id: &str, is_dynamic, convention| {
            let family = FAMILIES.iter().find(|family| family.id() == id).unwrap();
            family.flow(is_dynamic, convention)
        };
        let of = |id, is_dynamic| {
            [Convention::Diffusers, Convention::ComfyUi, Convention::Automatic1111].map(|convention| {
                let rules = rules(id, is_dynamic, convention).unwrap();
                (rules.grid, rules.mu, rules.table, rules.table_mu)
            })
        };
        let (ends, even) = (FlowGrid::Ends, FlowGrid::Even);
        let (line, fit) = (FlowMu::Interpolated, FlowMu::Empirical);
        assert_eq!(of("sd3", false), [(ends, line, 1000, None); 3]);
        assert_eq!(of("z_image", false), [(even, line, 1000, None); 3]);
        assert_eq!(of("flux", true)[1..], [(even, line, 10_000, Some(1.15)); 2]);
        let schnell = of("flux", false);
        assert_eq!(schnell[1..], [(even, line, 1000, None), (even, line, 10_000, Some(1.0))]);
        assert_eq!(of("flux2", true)[1], (even, fit, 10_000, Some(2.02)));
        assert_eq!(rules("sdxl", false, Convention::Diffusers), None);
    }
}
