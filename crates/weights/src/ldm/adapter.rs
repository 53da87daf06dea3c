//! T2I-Adapters of TencentARC: their names, and how many residual blocks a level has.

use super::Names;
use crate::source::ParamSource;

/// The maximum number of levels and of blocks. The rest of a file that claims more is not read.
const MAX_COUNT: usize = 64;

/// The names of a T2I-Adapter in its authors' files, with those of diffusers as declared ones. `None` for other files.
///
/// The full form numbers the residual blocks of all levels consecutively; a level begins where a block has `in_conv`, which
/// the first one with other channels has. The light form has the blocks of a level below it.
pub fn adapter_names(source: &dyn ParamSource) -> Option<Names> {
    let has = |name: String| source.info(&format!("{name}.weight")).is_some();
    let mut names = Names::default();
    if has("body.0.in_conv".into()) && has("body.0.body.0.block1".into()) {
        for level in (0..MAX_COUNT).take_while(|level| has(format!("body.{level}.in_conv"))) {
            for part in ["in_conv", "out_conv"] {
                names.add(format!("adapter.body.{level}.{part}"), format!("body.{level}.{part}"), &[]);
            }
            for block in (0..MAX_COUNT).take_while(|block| has(format!("body.{level}.body.{block}.block1"))) {
                let (declared, stored) =
                    (format!("adapter.body.{level}.resnets.{block}"), format!("body.{level}.body.{block}"));
                names.add(declared, stored, &[]);
            }
        }
        return Some(names);
    }
    if !has("conv_in".into()) || !has("body.0.block1".into()) {
        return None;
    }
    names.add("adapter.conv_in", "conv_in", &[]);
    let blocks = (0..MAX_COUNT).take_while(|block| has(format!("body.{block}.block1"))).count();
    let layers = (1..blocks).find(|block| has(format!("body.{block}.in_conv"))).unwrap_or(blocks);
    for block in 0..blocks {
        let (level, layer) = (block / layers, block % layers);
        for part in ["block1", "block2"] {
            let declared = format!("adapter.body.{level}.resnets.{layer}.{part}");
            names.add(declared, format!("body.{block}.{part}"), &[]);
        }
        if layer == 0 && has(format!("body.{block}.in_conv")) {
            names.add(format!("adapter.body.{level}.in_conv"), format!("body.{block}.in_conv"), &[]);
        }
    }
    Some(names)
}
