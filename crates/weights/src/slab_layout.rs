//! Where the parts of a segment are in its slab.

use kiln_ops::EightBits;

use crate::param_spec::{ALIGNMENT, SlabType};
use crate::segment::Segment;

/// The parts of a slab, in elements of its type: the parameters, and then the scales of those in bytes for GPUs. The scales of
/// neighbors lie side by side, so that stacked matrices have theirs in a row too.
pub(crate) struct SlabLayout {
    /// The start of each parameter, and the end of the last one.
    pub(crate) params: Vec<usize>,
    /// The start and the length of each parameter's scales; `None` where they are not apart from it.
    pub(crate) scales: Vec<Option<(usize, usize)>>,
    /// The length of the slab.
    pub(crate) len: usize,
}

impl SlabLayout {
    /// Of a segment's slab in these types.
    pub(crate) fn of(segment: &Segment, slab: SlabType) -> Self {
        let (mut end, mut params, mut rows) = (0usize, vec![0], Vec::new());
        for (i, param) in segment.params().iter().enumerate() {
            let bytes = match segment.eight_bits(i) {
                Some(EightBits::Int8) => segment.int8(i).map(|int8| int8.matrix.bytes()),
                Some(EightBits::W8A8(_)) => segment.w8(i).map(|matrix| matrix.bytes()),
                None => None,
            };
            let bytes = bytes.or_else(|| segment.rows(i, slab).map(|rows| rows.n * rows.row_bytes));
            let bytes = bytes.unwrap_or_else(|| param.packed_elements() * slab.dtype.size_in_bytes());
            end = (end + bytes).next_multiple_of(ALIGNMENT);
            params.push(end);
            rows.push(segment.w8(i).map(|matrix| matrix.rows() * size_of::<f32>()));
        }
        let size = slab.dtype.size_in_bytes();
        let mut scales = Vec::with_capacity(rows.len());
        for bytes in rows {
            scales.push(bytes.map(|bytes| (end / size, bytes / size)));
            end += bytes.unwrap_or(0);
        }
        params.iter_mut().for_each(|start| *start /= size);
        Self { params, scales, len: end.next_multiple_of(ALIGNMENT) / size }
    }
}
