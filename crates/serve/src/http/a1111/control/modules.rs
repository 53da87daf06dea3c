//! Preprocessors by the extension's names, with its sliders.

use kiln_media::Preprocessor;
use serde_json::{Value, json};

/// A preprocessor of the extension that needs no network.
pub(super) struct Module {
    /// The name in requests.
    pub(super) name: &'static str,
    /// The label on the extension's page.
    pub(super) label: &'static str,
    /// The groups of `/controlnet/control_types` to which it belongs.
    pub(super) groups: &'static [&'static str],
    /// Of `threshold_a` and `threshold_b`.
    pub(super) sliders: &'static [Slider],
    make: fn(f64, f64) -> Option<Preprocessor>,
}

/// A number of a preprocessor.
pub(super) struct Slider {
    name: &'static str,
    value: f64,
    min: f64,
    max: f64,
    step: f64,
}

/// The resolution where a request says none.
pub(super) const RESOLUTION: usize = 512;
/// The resolutions that can be asked for.
const RESOLUTIONS: std::ops::RangeInclusive<usize> = 64..=2048;

const fn slider(name: &'static str, value: f64, min: f64, max: f64, step: f64) -> Slider {
    Slider { name, value, min, max, step }
}

/// All of them (`scripts/preprocessor/model_free_preprocessors.py` and `legacy/legacy_preprocessors.py`).
pub(super) const MODULES: [Module; 9] = [
    Module { name: "none", label: "none", groups: &[], sliders: &[], make: |_, _| None },
    Module {
        name: "canny",
        label: "canny",
        groups: &["Canny"],
        sliders: &[slider("Low Threshold", 100.0, 1.0, 255.0, 1.0), slider("High Threshold", 200.0, 1.0, 255.0, 1.0)],
        make: |low, high| Some(Preprocessor::Canny { low, high }),
    },
    Module {
        name: "invert",
        label: "invert (from white bg & black line)",
        groups: &["Canny", "Lineart", "Scribble", "SoftEdge"],
        sliders: &[],
        make: |_, _| Some(Preprocessor::Invert),
    },
    Module {
        name: "lineart_standard",
        label: "lineart_standard (from white bg & black line)",
        groups: &["Lineart"],
        sliders: &[],
        make: |_, _| Some(Preprocessor::Lineart),
    },
    Module {
        name: "scribble_xdog",
        label: "scribble_xdog",
        groups: &["Scribble"],
        sliders: &[slider("XDoG Threshold", 32.0, 1.0, 64.0, 1.0)],
        make: |threshold, _| Some(Preprocessor::Scribble { threshold }),
    },
    Module {
        name: "blur_gaussian",
        label: "blur_gaussian",
        groups: &["Tile"],
        sliders: &[slider("Sigma", 9.0, 0.01, 64.0, 0.01)],
        make: |sigma, _| Some(Preprocessor::Blur { sigma }),
    },
    Module {
        name: "tile_resample",
        label: "tile_resample",
        groups: &["Tile"],
        sliders: &[slider("Down Sampling Rate", 1.0, 1.0, 8.0, 0.01)],
        make: |factor, _| Some(Preprocessor::Tile { factor }),
    },
    Module {
        name: "threshold",
        label: "threshold",
        groups: &["Canny"],
        sliders: &[slider("Binarization Threshold", 127.0, 0.0, 255.0, 1.0)],
        make: |level, _| Some(Preprocessor::Threshold { level: level as u8 }),
    },
    Module {
        name: "color",
        label: "t2ia_color_grid",
        groups: &["T2I-Adapter"],
        sliders: &[],
        make: |_, _| Some(Preprocessor::ColorGrid),
    },
];

impl Module {
    /// The one of this name or label, in letters of any case.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        let name = name.trim();
        let is = |known: &str| known.eq_ignore_ascii_case(name);
        let own = || Preprocessor::find(name);
        MODULES.iter().find(|module| is(module.name) || is(module.label)).or_else(|| {
            let own = std::mem::discriminant(&own()?);
            MODULES
                .iter()
                .find(|module| module.preprocessor([-1.0; 2]).is_some_and(|made| std::mem::discriminant(&made) == own))
        })
    }

    /// The preprocessor with these values of its sliders; one out of range is the slider's own. `None` where images stay as
    /// they are.
    pub(super) fn preprocessor(&self, values: [f64; 2]) -> Option<Preprocessor> {
        let value = |i: usize| {
            let slider = self.sliders.get(i)?;
            Some(if (slider.min..=slider.max).contains(&values[i]) { values[i] } else { slider.value })
        };
        (self.make)(value(0).unwrap_or(0.0), value(1).unwrap_or(0.0))
    }

    /// Whether it makes edges of one pixel.
    pub(super) fn has_thin_edges(&self) -> bool {
        self.name == "canny"
    }

    /// Its entry in `module_detail`.
    pub(super) fn detail(&self) -> Value {
        let resolution =
            || json!({ "name": "Preprocessor Resolution", "value": RESOLUTION, "min": 64, "max": 2048, "step": 8 });
        let one = |slider: &Slider| json!({ "name": slider.name, "value": slider.value, "min": slider.min, "max": slider.max, "step": slider.step });
        let sliders: Vec<Value> = match self.sliders {
            [] => Vec::new(),
            sliders => std::iter::once(resolution()).chain(sliders.iter().map(one)).collect(),
        };
        json!({ "model_free": false, "sliders": sliders })
    }
}

/// The resolution that a request names; one out of range is the usual one.
pub(super) fn resolution(asked: Option<i64>) -> usize {
    asked
        .and_then(|asked| usize::try_from(asked).ok())
        .filter(|asked| RESOLUTIONS.contains(asked))
        .unwrap_or(RESOLUTION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_programs_are_known() {
        for (name, found) in [
            ("canny", "canny"),
            ("None", "none"),
            ("scribble", "scribble_xdog"),
            ("invert (from white bg & black line)", "invert"),
            ("color_grid", "color"),
        ] {
            assert_eq!(Module::find(name).map(|module| module.name), Some(found), "{name}");
        }
        assert!(Module::find("openpose_full").is_none());
        for module in &MODULES {
            assert_eq!(module.preprocessor([-1.0; 2]).is_none(), module.name == "none", "{}", module.name);
            assert!(Preprocessor::find(module.name).is_some() || module.name == "none", "{}", module.name);
        }
    }

    #[test]
    fn values_out_of_range_are_the_defaults() {
        let canny = Module::find("canny").unwrap();
        assert_eq!(canny.preprocessor([50.0, -1.0]), Some(Preprocessor::Canny { low: 50.0, high: 200.0 }));
        assert_eq!(canny.preprocessor([1000.0, 90.0]), Some(Preprocessor::Canny { low: 100.0, high: 90.0 }));
        assert_eq!((resolution(None), resolution(Some(-1)), resolution(Some(256))), (512, 512, 256));
    }
}
