//! Options that change the network: perturbed attention, FreeU, DeepCache, deep shrink, and the first-block cache.

use std::fmt;
use std::str::FromStr;

use kiln_unet::{FreeU, FreeuRule, LayerSelection, UnetConfig};
use serde::{Deserialize, Serialize};

use crate::control::is_between;
use crate::error::{Error, Result};
use crate::input::{choice, named};
use crate::job::Job;
use crate::options::{NetworkOptions, OptionSet, Request, check};

/// Layers of the network, as `mid,up_blocks.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PagLayers(pub LayerSelection);

impl Default for PagLayers {
    fn default() -> Self {
        Self(LayerSelection::MID)
    }
}

impl FromStr for PagLayers {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        text.parse().map(Self)
    }
}

impl fmt::Display for PagLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// FreeU's factors `b1,b2,s1,s2`: of the up path's features in the first and in the second stage, and of the skip connections'
/// low frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FreeuFactors(pub [f64; 4]);

impl FreeuFactors {
    /// The names in an infotext of Forge.
    pub(crate) const KEYS: [&str; 4] = ["freeu_b1", "freeu_b2", "freeu_s1", "freeu_s2"];
}

impl FromStr for FreeuFactors {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str| text.trim().parse().ok().filter(|factor| (0.0..=10.0).contains(factor));
        let factors: Option<Vec<f64>> = text.split(',').map(number).collect();
        let factors = factors.and_then(|factors| factors.try_into().ok());
        factors.map(Self).ok_or_else(|| "expected four numbers from 0 to 10, as in 1.5,1.6,0.9,0.2".into())
    }
}

impl fmt::Display for FreeuFactors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [b1, b2, s1, s2] = self.0;
        write!(f, "{b1},{b2},{s1},{s2}")
    }
}

/// DeepCache: `deepcache:INTERVAL:BRANCH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CacheUse {
    /// The whole network runs in one of so many evaluations: 2 at least.
    pub interval: usize,
    /// The skip connection at the shortcut.
    pub branch: usize,
}

impl CacheUse {
    /// The default interval.
    const INTERVAL: usize = 3;
}

impl FromStr for CacheUse {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut parts = text.trim().split(':');
        let is_known = parts.next() == Some("deepcache");
        let mut number = |default: usize| parts.next().map_or(Some(default), |text| text.trim().parse().ok());
        let (interval, branch) = (number(Self::INTERVAL), number(0));
        match (is_known, interval, branch, parts.next()) {
            (true, Some(interval @ 2..=1000), Some(branch), None) => Ok(Self { interval, branch }),
            _ => {
                Err("expected deepcache, or deepcache:INTERVAL with 2 to 1000 evaluations, or deepcache:3:BRANCH"
                    .into())
            }
        }
    }
}

impl fmt::Display for CacheUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interval, branch } = self;
        match branch {
            0 => write!(f, "deepcache:{interval}"),
            branch => write!(f, "deepcache:{interval}:{branch}"),
        }
    }
}

/// Values that JSON has as text.
macro_rules! as_text {
    ($($kind:ty),*) => {$(
        impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $kind {
            type Error = String;

            fn try_from(text: String) -> std::result::Result<Self, String> {
                text.parse()
            }
        }
    )*};
}

pub(crate) use as_text;

as_text!(PagLayers, FreeuFactors, CacheUse);

choice! {
    /// The program whose rule FreeU follows.
    FreeuVersion {
        /// diffusers' `enable_freeu`.
        #[default]
        Diffusers = "diffusers", "diffusers";
        /// The first version of its authors, ComfyUI's `FreeU`.
        V1 = "v1", "1";
        /// The second version, ComfyUI's `FreeU_V2` and Forge's.
        V2 = "v2", "2";
    }
}

impl NetworkOptions {
    /// FreeU, if it is on.
    pub fn freeu(&self) -> Option<FreeU> {
        let rule = match self.freeu_version {
            FreeuVersion::Diffusers => FreeuRule::Diffusers,
            FreeuVersion::V1 => FreeuRule::V1,
            FreeuVersion::V2 => FreeuRule::V2,
        };
        self.freeu.map(|FreeuFactors([b1, b2, s1, s2])| FreeU { backbone: [b1, b2], skip: [s1, s2], rule })
    }

    /// The strength of perturbed attention guidance at a timestep: diffusers' `_get_pag_scale`.
    pub fn pag_scale_at(&self, timestep: f64) -> f64 {
        match self.pag_adaptive_scale {
            0.0 => self.pag_scale,
            fall => (self.pag_scale - fall * (1000.0 - timestep)).max(0.0),
        }
    }

    /// Whether deep shrink acts at a timestep, by ComfyUI's parts of the noise levels.
    pub fn shrinks_at(&self, timestep: f64) -> bool {
        self.deep_shrink.is_some() && is_between((self.deep_shrink_start, self.deep_shrink_end), timestep)
    }

    /// Whether anything of the network changes.
    pub fn is_on(&self) -> bool {
        self.name_of_first().or_else(|| self.named_block_cache()).is_some()
    }

    /// The option that turns on the first-block cache, or goes with it.
    fn named_block_cache(&self) -> Option<(&'static str, String)> {
        let cache = self.block_cache.map(|threshold| ("block_cache", format!("{threshold:?}")));
        cache.or_else(|| self.block_cache_predict.then(|| ("block_cache_predict", "true".into())))
    }

    /// The option that turns on the first part of a U-Net.
    fn name_of_first(&self) -> Option<(&'static str, String)> {
        let pag = (self.pag_scale > 0.0).then(|| ("pag_scale", format!("{:?}", self.pag_scale)));
        let freeu = || self.freeu.map(|freeu| ("freeu", freeu.to_string()));
        let cache = || self.cache.map(|cache| ("cache", cache.to_string()));
        let shrink = || self.deep_shrink.map(|factor| ("deep_shrink", format!("{factor:?}")));
        let sag = || (self.sag_scale > 0.0).then(|| ("sag_scale", format!("{:?}", self.sag_scale)));
        pag.or_else(sag).or_else(freeu).or_else(cache).or_else(shrink)
    }

    /// The option that changes the network, if one does.
    pub(crate) fn first_change(&self) -> Option<&'static str> {
        let first = self.name_of_first().map(|(name, _)| name);
        first.or_else(|| self.block_cache.map(|_| "block_cache"))
    }
}

impl Request {
    /// Options of a U-Net with the configuration `unet`, without a job; `None` for a transformer, which has the first-block cache
    /// alone.
    ///
    /// # Errors
    /// [`Error::Value`] names an option that is out of its range, that needs another one, or that this network cannot have.
    pub fn network_options(&self, unet: Option<&UnetConfig>) -> Result<NetworkOptions> {
        check(self)?;
        self.network(unet)
    }

    /// Like [`Self::network_options`], for ranges that are checked already.
    pub(crate) fn network(&self, unet: Option<&UnetConfig>) -> Result<NetworkOptions> {
        let fail = |name, found: String, expected: &str| Err(Error::Value { name, found, expected: expected.into() });
        let options = NetworkOptions::of(self);
        let Some(unet) = unet else {
            return match options.name_of_first() {
                Some((name, found)) => fail(name, found, "none: this model has no U-Net"),
                None => self.with_block_cache(options),
            };
        };
        if let Some((name, found)) = options.named_block_cache() {
            return fail(name, found, "none: it works with transformers, and this model has a U-Net");
        }
        if let (Some(fall), 0.0) = (self.pag_adaptive_scale, options.pag_scale) {
            return fail("pag_adaptive_scale", format!("{fall:?}"), "`pag_scale` too");
        }
        if let (Some(layers), 0.0) = (self.pag_layers, options.pag_scale) {
            return fail("pag_layers", layers.to_string(), "`pag_scale` too");
        }
        if let (Some(version), None) = (self.freeu_version, self.freeu) {
            return fail("freeu_version", version.id().into(), "`freeu` too");
        }
        if options.pag_scale > 0.0
            && let Some(missing) = options.pag_layers.0.missing_in(unet)
        {
            return fail(
                "pag_layers",
                missing,
                "layers with attention that this model's U-Net has, such as up_blocks.1",
            );
        }
        let sag_others = [("sag_sigma", self.sag_sigma), ("sag_threshold", self.sag_threshold)];
        let sag_other = sag_others.into_iter().find_map(|(name, value)| Some((name, value?)));
        match (options.sag_scale > 0.0, sag_other) {
            (false, Some((name, found))) => return fail(name, format!("{found:?}"), "`sag_scale` too"),
            (false, None) => {}
            (true, _) => {
                let found = format!("{:?}", options.sag_scale);
                if LayerSelection::MID.missing_in(unet).is_some() {
                    return fail("sag_scale", found, "0: this model's middle block has no attention");
                }
                let others = [
                    (options.pag_scale > 0.0, "0 with `pag_scale`"),
                    (options.cache.is_some(), "0 with `cache`, which leaves out the middle block"),
                    (options.deep_shrink.is_some(), "0 with `deep_shrink`, whose middle block has another size"),
                    (!self.controls.is_empty(), "0 with `controls`"),
                    (self.s_churn.is_some_and(|churn| churn > 0.0), "0 with `s_churn`"),
                ];
                if let Some((_, expected)) = others.into_iter().find(|(is_on, _)| *is_on) {
                    return fail("sag_scale", found, expected);
                }
            }
        }
        let skips = unet.skips().len();
        if let Some(cache) = options.cache.filter(|cache| cache.branch >= skips) {
            return fail(
                "cache",
                cache.to_string(),
                &format!("a branch less than {skips}, the U-Net's skip connections"),
            );
        }
        let numbers = [("deep_shrink_start", self.deep_shrink_start), ("deep_shrink_end", self.deep_shrink_end)];
        let block = self.deep_shrink_block.map(|block| ("deep_shrink_block", block as f64));
        let others = numbers.into_iter().filter_map(|(name, value)| Some((name, value?))).chain(block);
        match (options.deep_shrink, others.into_iter().next()) {
            (None, Some((name, found))) => return fail(name, found.to_string(), "`deep_shrink` too"),
            (Some(_), _) if options.deep_shrink_block >= skips => {
                let found = options.deep_shrink_block.to_string();
                return fail(
                    "deep_shrink_block",
                    found,
                    &format!("less than {skips}, the U-Net's steps on the way down"),
                );
            }
            (Some(_), _) if options.deep_shrink_start > options.deep_shrink_end => {
                let found = options.deep_shrink_start.to_string();
                return fail("deep_shrink_start", found, "at most `deep_shrink_end`");
            }
            (Some(factor), _) if options.cache.is_some() => {
                return fail("deep_shrink", format!("{factor:?}"), "none with `cache`, whose feature has one size");
            }
            (Some(factor), _) if !self.controls.is_empty() => {
                return fail("deep_shrink", format!("{factor:?}"), "none with `controls`, whose maps do not shrink");
            }
            (Some(factor), _) if self.ip_adapters.iter().any(|prompt| prompt.mask.is_some()) => {
                let expected = "none with the `mask` of an IP-Adapter, which does not shrink";
                return fail("deep_shrink", format!("{factor:?}"), expected);
            }
            _ => {}
        }
        if let (Some((name, found)), Some(_)) = (options.name_of_first(), &self.refiner) {
            return fail(name, found, "none with `refiner`, whose network is another one");
        }
        Ok(options)
    }
}

impl Request {
    /// `options` of a transformer, if the other options allow its first-block cache.
    fn with_block_cache(&self, options: NetworkOptions) -> Result<NetworkOptions> {
        let Some((name, found)) = options.named_block_cache() else { return Ok(options) };
        let expected = match options.block_cache {
            None => "`block_cache` too",
            Some(_) if !self.controls.is_empty() => {
                "none with `controls`, which act on the blocks that the cache leaves out"
            }
            Some(_) => return Ok(options),
        };
        Err(Error::Value { name, found, expected: expected.into() })
    }
}

/// The fewest steps with the first-block cache.
const STEPS_OF_BLOCK_CACHE: usize = 10;

impl Job {
    /// Refuses the first-block cache for few steps. `name` is the option with their number.
    ///
    /// # Errors
    /// [`Error::Value`] with that option.
    pub(crate) fn check_block_cache(&self, name: &'static str) -> Result<()> {
        match self.network.block_cache {
            Some(_) if self.steps < STEPS_OF_BLOCK_CACHE => {
                let expected = format!(
                    "{STEPS_OF_BLOCK_CACHE} or more with `block_cache`: with fewer, one step differs too much from the \
                     next for the cache to stand for it"
                );
                Err(Error::Value { name, found: self.steps.to_string(), expected })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ControlUse;

    #[test]
    fn adaptive_strength_falls_with_the_noise() {
        let options = NetworkOptions { pag_scale: 3.0, pag_adaptive_scale: 0.01, ..Default::default() };
        assert_eq!([1000.0, 900.0, 500.0].map(|timestep| options.pag_scale_at(timestep)), [3.0, 2.0, 0.0]);
    }

    #[test]
    fn a_transformer_has_the_block_cache_alone() {
        let request = Request { block_cache: Some(0.1), ..Request::default() };
        let options = request.network_options(None).unwrap();
        assert!(options.is_on() && options.block_cache == Some(0.1));
        let message = |request: Request| request.network_options(None).unwrap_err().to_string();
        let controls = vec![ControlUse::new("edges")];
        let found = message(Request { controls, ..request.clone() });
        assert!(found.starts_with("`block_cache` is 0.1, expected none with `controls`"), "{found}");
        let found = message(Request { block_cache: None, block_cache_predict: true, ..request.clone() });
        assert_eq!(found, "`block_cache_predict` is true, expected `block_cache` too");
        let found = message(Request { freeu: "1,1,1,1".parse().ok(), ..request.clone() });
        assert_eq!(found, "`freeu` is 1,1,1,1, expected none: this model has no U-Net");
        let unet = UnetConfig::from_json(
            r#"{"block_out_channels": [32], "layers_per_block": 1, "cross_attention_dim": 48, "attention_head_dim": 4,
                "down_block_types": ["DownBlock2D"], "up_block_types": ["UpBlock2D"]}"#,
        );
        let found = request.network_options(Some(&unet.unwrap())).unwrap_err().to_string();
        assert_eq!(
            found,
            "`block_cache` is 0.1, expected none: it works with transformers, and this model has a U-Net"
        );
    }

    #[test]
    fn factors_are_four_numbers() {
        let read = |text: &str| text.parse::<FreeuFactors>();
        assert_eq!(read("1.5, 1.6,0.9,0.2").unwrap().to_string(), "1.5,1.6,0.9,0.2");
        let cache = |text: &str| text.parse::<CacheUse>().map(|cache| cache.to_string());
        assert_eq!(cache("deepcache"), Ok("deepcache:3".into()));
        assert_eq!(cache("deepcache:5:0"), Ok("deepcache:5".into()));
        assert_eq!(cache("deepcache:2:4"), Ok("deepcache:2:4".into()));
        for text in ["", "cache", "deepcache:", "deepcache:1", "deepcache:3:x", "deepcache:3:0:1", "deepcache:-2"] {
            assert!(cache(text).is_err(), "{text}");
        }
        assert!(read("1,2,3").is_err() && read("1,2,3,x").is_err() && read("1,2,3,11").is_err() && read("").is_err());
    }
}
