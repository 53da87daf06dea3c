//! Slabs in host memory that several engines of a process have in common.
//!
//! Engines on several devices read the same files. A slab that stays in host memory, as all of the CPU's and the copies from which a
//! GPU's are streamed, is then made by the first engine that needs it, used by all, and freed by the last one. Slabs are
//! never written to after they were made.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use candle_core::Tensor;
use kiln_ops::WeightLayout;
use kiln_ops::stream::HostSlab;
use parking_lot::Mutex;

use crate::error::Result;
use crate::param_spec::SlabType;
use crate::segment::{In8Bits, Segment};
use crate::source::ParamSource;

/// Slabs that engines have in common. Its clones are the same.
#[derive(Clone, Default)]
pub struct SharedSlabs(Arc<Maps>);

#[derive(Default)]
struct Maps {
    slabs: Map<Tensor>,
    copies: Map<HostSlab>,
}

/// Each slab has a lock of its own, so that those who need it wait for the one who makes it, and no others.
type Map<T> = Mutex<HashMap<String, Arc<Mutex<Weak<T>>>>>;

impl SharedSlabs {
    /// The flat slab of this name, on the CPU.
    pub(crate) fn slab(&self, name: String, make: impl FnOnce() -> Result<Tensor>) -> Result<Arc<Tensor>> {
        known_or_made(&self.0.slabs, name, make)
    }

    /// The slab of this name from which a GPU's copies are made.
    pub(crate) fn host_slab(&self, name: String, make: impl FnOnce() -> Result<HostSlab>) -> Result<Arc<HostSlab>> {
        known_or_made(&self.0.copies, name, make)
    }

    /// How many slabs are in memory.
    pub fn count(&self) -> usize {
        fn of<T>(map: &Map<T>) -> usize {
            let places: Vec<_> = map.lock().values().cloned().collect();
            places.iter().filter(|place| place.lock().strong_count() > 0).count()
        }
        of(&self.0.slabs) + of(&self.0.copies)
    }
}

fn known_or_made<T>(map: &Map<T>, name: String, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
    let place = map.lock().entry(name).or_default().clone();
    let mut place = place.lock();
    if let Some(known) = place.upgrade() {
        return Ok(known);
    }
    let made = Arc::new(make()?);
    *place = Arc::downgrade(&made);
    Ok(made)
}

/// The place at which a segment's slab is shared, with its [`slab_name`]. `None` if it is not shared: the source does not
/// share, or changes an element of it.
pub(crate) fn place<'a>(
    segment: &Segment,
    source: &'a dyn ParamSource,
    types: SlabType,
    layout: WeightLayout,
) -> Option<(&'a SharedSlabs, String)> {
    let (shared, label) = source.shared()?;
    Some((shared, format!("{label} {}", slab_name(segment, source, types, layout)?)))
}

/// A name for all that decides on the bytes of a segment's slab besides the contents of the source's files. `None` where the source
/// changes an element of it.
pub(crate) fn slab_name(
    segment: &Segment,
    source: &dyn ParamSource,
    types: SlabType,
    layout: WeightLayout,
) -> Option<String> {
    if segment.params().iter().any(|param| source.is_changed(&param.key)) {
        return None;
    }
    let mut name = format!("{} {types} {layout:?}", segment.name());
    for (i, param) in segment.params().iter().enumerate() {
        name += &format!(" {}:{}:{:?}:{:?}", source.origin(&param.key), param.key, param.shape, param.packing);
        // The range of the input is no part of the slab.
        name += &segment
            .in_8_bits(i)
            .map_or_else(String::new, |In8Bits { kind, input }| format!(":{kind:?}:{:?}", input.balance));
        name += &segment.kept(i).map_or_else(String::new, |kind| format!(":{kind}"));
    }
    Some(name)
}

impl PartialEq for SharedSlabs {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedSlabs {}

impl fmt::Debug for SharedSlabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSlabs").field("count", &self.count()).finish()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use kiln_ops::Packing;

    use super::*;
    use crate::load::{Placement, load};
    use crate::lora::Patched;
    use crate::segment::{Param, SegmentModule, Segments};
    use crate::source::MapSource;

    struct Network {
        segments: Segments,
        parts: Vec<SegmentModule<Param>>,
        source: Patched<MapSource>,
    }

    /// Two segments, loaded from tensors that have the segments' numbers.
    fn network(shared: Option<&SharedSlabs>, label: &str, dtype: DType) -> Network {
        let mut segments = Segments::default();
        let part = |i: usize| segments.add(format!("part.{i}"), |p| p.pp(i).param("weight", &[8], Packing::AsStored));
        let parts = [0, 1].map(part).into();
        let tensor = |i: usize| (format!("{i}.weight"), Tensor::full(i as f32, 8, &Device::Cpu).unwrap());
        let source = Patched::new([0, 1].map(tensor).into_iter().collect()).sharing(shared.cloned(), label);
        load(&segments, &source, &Placement::new(Device::Cpu, dtype)).unwrap();
        Network { segments, parts, source }
    }

    fn values(network: &Network) -> Vec<f32> {
        let value = |part: &SegmentModule<Param>| {
            let entered = part.enter().unwrap();
            entered.tensor().unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap()[0]
        };
        network.parts.iter().map(value).collect()
    }

    #[test]
    fn networks_of_the_same_files_have_their_slabs_in_common() {
        let shared = SharedSlabs::default();
        let one = network(Some(&shared), "unet", DType::F32);
        let two = network(Some(&shared), "unet", DType::F32);
        assert_eq!((shared.count(), values(&one), values(&two)), (2, vec![0.0, 1.0], vec![0.0, 1.0]));
        assert!(one.source.shared().is_some() && !one.source.is_changed("0.weight"));
        let others = [network(Some(&shared), "vae", DType::F32), network(Some(&shared), "unet", DType::BF16)];
        assert_eq!(shared.count(), 6, "of another network, and of another type");
        drop((network(None, "unet", DType::F32), others));
        one.segments.unload();
        assert_eq!((shared.count(), values(&two)), (2, vec![0.0, 1.0]), "the other one has them");
        drop((one, two));
        assert_eq!(shared.count(), 0);
    }
}
