//! The weights of a network on a second device, copied from the first instead of being read again.

use candle_core::Device;
use kiln_ops::peer;

use crate::error::{Error, Result};
use crate::load::{Placement, layout_on};
use crate::segment::{Segment, Slab};

/// Fills `segments` with the weights of `loaded`, the segments of the same network on another device of the same kind, in the types of
/// `placement`. Segments of the host and all slabs on the CPU are the same memory afterwards; GPUs get copies, which are
/// ordered with the work of both. Added biases come along.
///
/// # Errors
/// [`Error::NotLoaded`] where `loaded` has no weights, or a stream provides them; errors of the copies.
pub fn replicate(loaded: &[Segment], segments: &[Segment], placement: &Placement) -> Result<()> {
    for (from, to) in loaded.iter().zip(segments) {
        let contents = from.contents().filter(|_| !from.is_streamed());
        let contents = contents.ok_or_else(|| Error::NotLoaded(from.name().to_string()))?;
        let device = if to.on_host() { &Device::Cpu } else { &placement.device };
        to.keep_as(from);
        let memory = peer::to_device(&contents.memory, device)?;
        let slab = Slab::new(to, &memory, placement.slab(), layout_on(device))?;
        to.set_slab(Some(Slab { held: contents.held, ..slab }));
        let biases = contents.biases.into_iter();
        let biases = biases.map(|(layer, bias)| Ok((layer, peer::to_device(&bias, &placement.device)?)));
        to.set_bias_tensors(biases.collect::<Result<_>>()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Tensor};
    use kiln_ops::Packing;

    use super::*;
    use crate::load::load;
    use crate::segment::{Param, SegmentModule, Segments};
    use crate::source::MapSource;

    fn network() -> (Segments, SegmentModule<Param>) {
        let mut segments = Segments::default();
        let part = segments.add("part", |p| p.param("weight", &[40, 64], Packing::Linear));
        (segments, part)
    }

    #[test]
    fn a_replica_has_the_same_weights() {
        let placement = Placement::new(Device::Cpu, DType::F32);
        let (first, part) = network();
        let (second, replica) = network();
        assert!(matches!(replicate(&first, &second, &placement), Err(Error::NotLoaded(name)) if name == "part"));
        let weight = Tensor::arange(0f32, 2560.0, &Device::Cpu).unwrap().reshape((40, 64)).unwrap();
        let source: MapSource = [("weight".to_string(), weight)].into_iter().collect();
        load(&first, &source, &placement).unwrap();
        let bias = [("bias".to_string(), vec![2.0; 40])].into();
        first[0].set_added_biases(&bias, &placement).unwrap();
        replicate(&first, &second, &placement).unwrap();
        let values = |part: &SegmentModule<Param>| {
            let param = part.enter().unwrap();
            let weight = param.weight().unwrap().tensor().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            (weight, param.added_bias().unwrap().to_vec1::<f32>().unwrap())
        };
        assert_eq!(values(&part), values(&replica));
        first.unload();
        assert!(second[0].is_loaded() && replica.enter().is_ok(), "it holds the memory itself");
    }
}
