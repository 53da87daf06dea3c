//! The names that files have for the tensors of the networks.

use kiln_weights::{ParamData, ParamInfo, ParamSource, Result};

/// How a file names the tensors of RRDBNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RrdbNames {
    /// `body.0.rdb1.conv1`: BasicSR and Real-ESRGAN. The network declares these.
    BasicSr,
    /// `RRDB_trunk.0.RDB1.conv1`: BSRGAN, RealSR, and ESRGAN's own training code.
    Trunk,
    /// `model.1.sub.0.RDB1.conv1.0`: the files of ESRGAN's authors, and of most of its users. A number is a layer's place
    /// in a list.
    Original {
        /// How many blocks there are: the next layer in their list is `conv_body`.
        blocks: usize,
        /// How often the size is doubled: three layers each.
        upsamples: usize,
    },
}

impl RrdbNames {
    /// The name in the file for a layer, or a tensor, that the network declares.
    pub(crate) fn of(self, name: &str) -> String {
        let (layer, rest) = name.split_once('.').unwrap_or((name, ""));
        let rest = if rest.is_empty() { String::new() } else { format!(".{rest}") };
        let upsample = layer.strip_prefix("conv_up");
        match (self, layer, upsample) {
            (Self::BasicSr, ..) => name.to_string(),
            (Self::Trunk, "body", _) => format!("RRDB_trunk{}", rest.replace(".rdb", ".RDB")),
            (Self::Trunk, "conv_body", _) => format!("trunk_conv{rest}"),
            (Self::Trunk, "conv_hr", _) => format!("HRconv{rest}"),
            (Self::Trunk, _, Some(i)) => format!("upconv{i}{rest}"),
            (Self::Trunk, ..) => name.to_string(),
            (Self::Original { .. }, "conv_first", _) => format!("model.0{rest}"),
            (Self::Original { .. }, "body", _) => {
                // .0.rdb1.conv1.weight
                let rest = rest.replace(".rdb", ".RDB");
                let (conv, kind) = rest.rsplit_once('.').unwrap_or((&rest, ""));
                format!("model.1.sub{conv}.0.{kind}")
            }
            (Self::Original { blocks, .. }, "conv_body", _) => format!("model.1.sub.{blocks}{rest}"),
            (Self::Original { .. }, _, Some(i)) => format!("model.{}{rest}", 3 * i.parse::<usize>().unwrap_or(0)),
            (Self::Original { upsamples, .. }, "conv_hr", _) => format!("model.{}{rest}", 3 * upsamples + 2),
            (Self::Original { upsamples, .. }, _, _) => format!("model.{}{rest}", 3 * upsamples + 4),
        }
    }
}

/// How a file names the tensors of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Names {
    /// The prefix of all names: that of a dictionary in which training programs keep weights.
    pub(crate) prefix: &'static str,
    /// `None` where the network declares the file's names.
    pub(crate) rrdb: Option<RrdbNames>,
}

impl Names {
    /// The name in the file for a tensor that the network declares.
    pub(crate) fn of(self, name: &str) -> String {
        let name = self.rrdb.map_or_else(|| name.to_string(), |names| names.of(name));
        format!("{}{name}", self.prefix)
    }
}

/// A file under the names that the network declares.
pub(crate) struct Renamed<S> {
    pub(crate) source: S,
    pub(crate) names: Names,
    /// The declared names.
    pub(crate) keys: Vec<String>,
}

impl<S: ParamSource> ParamSource for Renamed<S> {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.source.info(&self.names.of(key))
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        self.source.data(&self.names.of(key))
    }

    fn release(&self, key: &str) {
        self.source.release(&self.names.of(key));
    }

    fn origin(&self, key: &str) -> String {
        self.source.origin(&self.names.of(key))
    }

    fn keys(&self) -> Vec<String> {
        self.keys.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_have_the_names_of_each_program() {
        let original = RrdbNames::Original { blocks: 23, upsamples: 2 };
        for (declared, trunk, first) in [
            ("conv_first.weight", "conv_first.weight", "model.0.weight"),
            ("body.7.rdb3.conv5.bias", "RRDB_trunk.7.RDB3.conv5.bias", "model.1.sub.7.RDB3.conv5.0.bias"),
            ("conv_body.weight", "trunk_conv.weight", "model.1.sub.23.weight"),
            ("conv_up1.weight", "upconv1.weight", "model.3.weight"),
            ("conv_up2.bias", "upconv2.bias", "model.6.bias"),
            ("conv_hr.weight", "HRconv.weight", "model.8.weight"),
            ("conv_last.bias", "conv_last.bias", "model.10.bias"),
        ] {
            assert_eq!(RrdbNames::BasicSr.of(declared), declared);
            assert_eq!(RrdbNames::Trunk.of(declared), trunk);
            assert_eq!(original.of(declared), first);
        }
    }
}
