//! Loading to a GPU: a thread packs a segment while the one before it is copied.
//!
//! Two buffers in host memory take turns. They are not cleared and not freed between segments: clearing them would be one more
//! pass over memory, and fresh pages would be one page fault each.

use std::sync::mpsc::{Receiver, Sender, channel};

use candle_core::{DType, Tensor};
use half::{bf16, f16};

use crate::element::Element;
use crate::error::{Error, Result};
use crate::load::{Placement, fill_slabs, layout_on};
use crate::segment::{Segment, Slab};
use crate::slab_layout::SlabLayout;
use crate::source::ParamSource;

/// Buffers: one is packed while the other is copied.
const BUFFERS: usize = 2;

/// Fills segments on the placement's device.
///
/// # Errors
/// Errors of the source and of the device. Segments before the error are filled.
pub(crate) fn upload(segments: &[&Segment], source: &dyn ParamSource, placement: &Placement) -> Result<()> {
    match placement.dtype {
        DType::F32 => upload_as::<f32>(segments, source, placement),
        DType::F16 => upload_as::<f16>(segments, source, placement),
        DType::BF16 => upload_as::<bf16>(segments, source, placement),
        other => Err(Error::SlabDType(other)),
    }
}

fn upload_as<T: Element>(segments: &[&Segment], source: &dyn ParamSource, placement: &Placement) -> Result<()> {
    let (packed_to, packed) = channel();
    let (free_to, free) = channel();
    (0..BUFFERS).for_each(|_| drop(free_to.send(Vec::new())));
    std::thread::scope(|scope| {
        let work = move || pack_all::<T>(segments, source, placement, &free, &packed_to);
        let thread = std::thread::Builder::new().name("kiln-weights".into());
        thread.spawn_scoped(scope, work).map_err(|source| Error::Thread { source })?;
        copy_all(segments, placement, packed, free_to) // the thread ends with the channels
    })
}

/// The thread: packs each segment into a free buffer, until all are packed, one fails, or no buffer comes back.
fn pack_all<T: Element>(
    segments: &[&Segment],
    source: &dyn ParamSource,
    placement: &Placement,
    free: &Receiver<Vec<T>>,
    packed: &Sender<Result<Vec<T>>>,
) {
    let (types, layout) = (placement.slab(), layout_on(&placement.device));
    for &segment in segments {
        let Ok(mut buffer) = free.recv() else { return };
        let slab = SlabLayout::of(segment, types);
        if buffer.capacity() < slab.len {
            buffer = T::zeros(slab.len);
        }
        buffer.resize(slab.len, T::zero());
        let mut slabs = [buffer];
        let result = fill_slabs(std::slice::from_ref(segment), &[slab], &mut slabs, source, types, layout);
        let failed = result.is_err();
        let [buffer] = slabs;
        if packed.send(result.map(|()| buffer)).is_err() || failed {
            return;
        }
    }
}

/// Copies each packed segment to the device, and gives its buffer back.
fn copy_all<T: Element>(
    segments: &[&Segment],
    placement: &Placement,
    packed: Receiver<Result<Vec<T>>>,
    free: Sender<Vec<T>>,
) -> Result<()> {
    let (types, layout) = (placement.slab(), layout_on(&placement.device));
    for segment in segments {
        let buffer = packed.recv().map_err(|_| Error::StreamEnded(segment.name().into()))??;
        // The copy has left the buffer when this returns.
        let slab = Tensor::from_slice(&buffer, buffer.len(), &placement.device)?;
        segment.set_slab(Some(Slab::new(segment, &slab, types, layout)?));
        let _ = free.send(buffer); // the thread may have ended
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::{MapSource, Packing, Segments, load};

    /// Segments of unequal sizes, so that buffers are reused with old contents, have the values that [`load`] gives them.
    #[test]
    fn segments_have_the_values_of_a_load() {
        let sizes = [[7, 12], [3, 5], [40, 9], [2, 2], [11, 6]];
        let build = || {
            let mut segments = Segments::default();
            let params = sizes.iter().enumerate().map(|(i, size)| {
                segments.add(format!("part.{i}"), |p| {
                    let p = p.pp(i);
                    [p.param("weight", size, Packing::AsStored), p.param("bias", &size[..1], Packing::AsStored)]
                })
            });
            let params: Vec<_> = params.collect();
            (segments, params)
        };
        let tensors = sizes.iter().enumerate().flat_map(|(i, &[n, k])| {
            let values = |len: usize| (0..len).map(|j| ((i * 977 + j) as f32).sin()).collect::<Vec<f32>>();
            let tensor = |values: Vec<f32>, shape: &[usize]| Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
            [(format!("{i}.weight"), tensor(values(n * k), &[n, k])), (format!("{i}.bias"), tensor(values(n), &[n]))]
        });
        let source: MapSource = tensors.collect();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let placement = Placement::new(Device::Cpu, dtype);
            let ((uploaded, new), (loaded, old)) = (build(), build());
            let all: Vec<&Segment> = uploaded.iter().collect();
            upload(&all, &source, &placement).unwrap();
            load(&loaded, &source, &placement).unwrap();
            for (new, old) in new.iter().flat_map(|part| part.module()).zip(old.iter().flat_map(|part| part.module())) {
                let values = |tensor: Tensor| {
                    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
                };
                assert_eq!(values(new.tensor().unwrap()), values(old.tensor().unwrap()));
            }
        }
    }

    #[test]
    fn a_segment_that_cannot_be_read_is_an_error() {
        let mut segments = Segments::default();
        let _parts = [0, 1, 2, 3]
            .map(|i| segments.add(format!("part.{i}"), |p| p.pp(i).param("weight", &[2], Packing::AsStored)));
        let there = |i: usize| (format!("{i}.weight"), Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap());
        let source: MapSource = [there(0), there(2), there(3)].into_iter().collect();
        let all: Vec<&Segment> = segments.iter().collect();
        let error = upload(&all, &source, &Placement::new(Device::Cpu, DType::F32)).unwrap_err();
        assert!(matches!(error, Error::Missing { ref key, .. } if key == "1.weight"), "{error}");
        assert!(segments[0].is_loaded() && !segments[1].is_loaded() && !segments[3].is_loaded());
    }
}
