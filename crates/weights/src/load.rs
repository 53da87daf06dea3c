//! Fills segments from a source.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use kiln_ops::portable::Backend;
use kiln_ops::{EightBits, MatrixType, Packing, W8Matrix, Weight, WeightLayout};
use rayon::prelude::*;

use crate::eight_bits::Int8Param;
use crate::element::{Element, Stored};
use crate::error::{Error, Result};
use crate::param_spec::{ParamSpec, SlabType, StoredRows};
use crate::rows;
use crate::segment::{Segment, Slab, Stack, View};
use crate::shared::place;
use crate::slab_layout::SlabLayout;
use crate::source::{ParamInfo, ParamSource};
use crate::upload::upload;

/// The device and types of weights in memory.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The device of the slabs, except for segments that stay on the host.
    pub device: Device,
    /// The elements' type: f32, f16 or bf16.
    pub dtype: DType,
    /// The type of the linear layers' matrices, if it differs ([`SlabType`]).
    pub matrices: Option<MatrixType>,
    /// The device whose operators read the slabs, if it is not candle's. Slabs are packed in host memory, row by row, and then copied
    /// to the device one by one.
    pub backend: Option<Arc<dyn Backend>>,
}

impl Placement {
    /// Slabs of `dtype` on `device`.
    pub fn new(device: Device, dtype: DType) -> Self {
        Self { device, dtype, matrices: None, backend: None }
    }

    /// Sets a separate type for the matrices of linear layers.
    pub fn with_matrices(self, matrices: Option<MatrixType>) -> Self {
        Self { matrices, ..self }
    }

    /// Sets the device whose operators read the slabs of host memory.
    pub fn with_backend(self, backend: Option<Arc<dyn Backend>>) -> Self {
        Self { backend, ..self }
    }

    /// The layout of weights in the slabs on `device`.
    pub(crate) fn layout_on(&self, device: &Device) -> WeightLayout {
        if self.backend.is_some() { WeightLayout::Plain } else { layout_on(device) }
    }

    /// The types of the slabs.
    pub fn slab(&self) -> SlabType {
        SlabType { dtype: self.dtype, matrices: self.matrices }
    }
}

/// The result of a load.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadReport {
    /// Bytes of all slabs.
    pub bytes: usize,
    /// The time from the call to its return.
    pub time: Duration,
}

/// Fills `segments` from `source`. Every parameter is converted and packed once, on several threads, directly from the
/// source's memory to its offset in the slab, and then released in the source ([`ParamSource::release`]). A mapped file
/// therefore takes no more memory than the parameters that are being converted.
///
/// All shapes are checked before memory is allocated.
///
/// # Errors
/// [`Error::Missing`], [`Error::Shape`] and [`Error::StoredDType`] name the tensor and the file.
pub fn load(segments: &[Segment], source: &dyn ParamSource, placement: &Placement) -> Result<LoadReport> {
    let start = Instant::now();
    check_all(segments, source)?;
    if placement.device.is_cpu() && placement.backend.is_none() && source.shared().is_none() {
        let layout = placement.layout_on(&Device::Cpu);
        let slabs = kept_or_packed(segments, source, placement.slab(), layout)?;
        for (segment, slab) in segments.iter().zip(slabs) {
            set(segment, &Arc::new(slab), &Device::Cpu, (placement.slab(), layout))?;
        }
    } else {
        // One by one, so that segments that are shared are made by whoever comes first.
        let is_uploaded = |segment: &&Segment| !placement.device.is_cpu() && !segment.on_host();
        let (uploaded, others): (Vec<&Segment>, Vec<&Segment>) = segments.iter().partition(is_uploaded);
        others.iter().try_for_each(|segment| load_one(segment, source, placement))?;
        upload(&uploaded, source, placement)?;
    }
    let bytes = segments.iter().map(|segment| segment.bytes(placement.slab())).sum();
    Ok(LoadReport { bytes, time: start.elapsed() })
}

/// Fills segments as [`load`] does, except those of tables ([`Segments::add_in_source`](crate::Segments::add_in_source)). These
/// keep `source`: each use of a table reads its rows from there, so that the table takes no memory.
///
/// # Errors
/// Errors of [`load`].
pub fn load_open(segments: &[Segment], source: &Arc<dyn ParamSource>, placement: &Placement) -> Result<LoadReport> {
    check_all(segments, source.as_ref())?;
    let (tables, others): (Vec<Segment>, Vec<Segment>) = segments.iter().cloned().partition(Segment::in_source);
    tables.iter().for_each(|segment| segment.set_rows(source.clone(), placement.dtype));
    load(&others, source.as_ref(), placement)
}

/// Returns an error if a parameter is missing in the source or has another shape. Reads no elements.
pub(crate) fn check_all(segments: &[Segment], source: &dyn ParamSource) -> Result<()> {
    segments.iter().flat_map(Segment::params).try_for_each(|param| check(param, source))
}

/// Fills one segment.
pub(crate) fn load_one(segment: &Segment, source: &dyn ParamSource, placement: &Placement) -> Result<()> {
    let device = if segment.on_host() { &Device::Cpu } else { &placement.device };
    let (types, layout) = (placement.slab(), placement.layout_on(device));
    let make = || packed_one(segment, source, types, layout);
    let slab = match place(segment, source, types, layout) {
        Some((shared, name)) if device.is_cpu() && placement.backend.is_none() => shared.slab(name, make)?,
        _ => Arc::new(make()?),
    };
    match placement.backend.as_ref().filter(|_| !segment.on_host()) {
        Some(backend) => {
            segment.set_slab(Some(Slab::new(segment, &slab, types, layout)?.upload(backend)?));
            Ok(())
        }
        None => set(segment, &slab, device, (types, layout)),
    }
}

/// Sets a segment's slab, on `device`.
fn set(
    segment: &Segment,
    slab: &Arc<Tensor>,
    device: &Device,
    (types, layout): (SlabType, WeightLayout),
) -> Result<()> {
    let held = device.is_cpu().then(|| slab.clone());
    let slab = Slab::new(segment, &slab.to_device(device)?, types, layout)?;
    segment.set_slab(Some(Slab { held, ..slab }));
    Ok(())
}

/// The weight layout of a device.
pub(crate) fn layout_on(device: &Device) -> WeightLayout {
    if device.is_cpu() { WeightLayout::Panels } else { WeightLayout::Plain }
}

/// The errors that [`load`] would return for `source`, one for each tensor that is missing or has another shape. Reads
/// no elements.
pub fn mismatches(segments: &[Segment], source: &dyn ParamSource) -> Vec<Error> {
    segments.iter().flat_map(Segment::params).filter_map(|param| check(param, source).err()).collect()
}

fn check(param: &ParamSpec, source: &dyn ParamSource) -> Result<()> {
    let origin = || source.origin(&param.key);
    let Some(ParamInfo { shape, .. }) = source.info(&param.key) else {
        return Err(Error::Missing { origin: origin(), key: param.key.clone(), expected: param.shape.clone() });
    };
    if !equal_up_to_trailing_ones(&shape, &param.shape) && !is_kernel_of(&shape, param) {
        return Err(Error::Shape {
            origin: origin(),
            key: param.key.clone(),
            expected: param.shape.clone(),
            found: shape,
        });
    }
    Ok(())
}

fn equal_up_to_trailing_ones(a: &[usize], b: &[usize]) -> bool {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    long.starts_with(short) && long[short.len()..].iter().all(|&dim| dim == 1)
}

/// Whether `shape` is that of a convolution's kernel whose elements are those of a linear layer's matrix: a kernel that is applied to
/// patches of its own size.
fn is_kernel_of(shape: &[usize], param: &ParamSpec) -> bool {
    match (param.packing, &param.shape[..], shape) {
        (Packing::Linear, &[n, k], &[rows, ref rest @ ..]) => {
            rows == n && rest.iter().try_fold(1usize, |all, &dim| all.checked_mul(dim)) == Some(k)
        }
        _ => false,
    }
}

/// A segment's packed parameters, as one flat CPU tensor.
pub(crate) fn packed_one(
    segment: &Segment,
    source: &dyn ParamSource,
    slab: SlabType,
    layout: WeightLayout,
) -> Result<Tensor> {
    let slabs = kept_or_packed(std::slice::from_ref(segment), source, slab, layout)?;
    slabs.into_iter().next().ok_or_else(|| Error::NotLoaded(segment.name().into()))
}

/// The packed parameters of each segment, as flat CPU tensors, from the source's folder of packed slabs if it has one.
fn kept_or_packed(
    segments: &[Segment],
    source: &dyn ParamSource,
    slab: SlabType,
    layout: WeightLayout,
) -> Result<Vec<Tensor>> {
    match source.slab_cache().filter(|_| layout == WeightLayout::Panels && is_slab_type(slab.dtype)) {
        Some(cache) => cache.slabs(segments, source, slab, |missing| packed(missing, source, slab, layout)),
        None => packed(segments, source, slab, layout),
    }
}

/// Whether slabs can have elements of this type.
fn is_slab_type(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The packed parameters of each segment, as flat CPU tensors.
fn packed(segments: &[Segment], source: &dyn ParamSource, slab: SlabType, layout: WeightLayout) -> Result<Vec<Tensor>> {
    match slab.dtype {
        DType::F32 => packed_as::<f32>(segments, source, slab, layout),
        DType::F16 => packed_as::<f16>(segments, source, slab, layout),
        DType::BF16 => packed_as::<bf16>(segments, source, slab, layout),
        other => Err(Error::SlabDType(other)),
    }
}

/// Packs all parameters of all segments at once, so that all threads are busy until the end.
fn packed_as<T: Element>(
    segments: &[Segment],
    source: &dyn ParamSource,
    slab: SlabType,
    layout: WeightLayout,
) -> Result<Vec<Tensor>> {
    let layouts: Vec<SlabLayout> = segments.iter().map(|segment| SlabLayout::of(segment, slab)).collect();
    // The threads that fill the memory are the first to touch it.
    let mut slabs: Vec<Vec<T>> = layouts.iter().map(|layout| T::zeros(layout.len)).collect();
    fill_slabs(segments, &layouts, &mut slabs, source, slab, layout)?;
    let tensor = |values: Vec<T>| {
        let length = values.len();
        Ok(Tensor::from_vec(values, length, &Device::Cpu)?)
    };
    slabs.into_iter().map(tensor).collect()
}

/// Packs all parameters of all segments into slabs of these layouts. Bytes between parameters are left as they are.
pub(crate) fn fill_slabs<T: Element>(
    segments: &[Segment],
    layouts: &[SlabLayout],
    slabs: &mut [Vec<T>],
    source: &dyn ParamSource,
    slab: SlabType,
    layout: WeightLayout,
) -> Result<()> {
    let mut places = Vec::new();
    for ((segment, layout), values) in segments.iter().zip(layouts).zip(slabs) {
        let params = layout.params.last().copied().unwrap_or(0);
        let (mut rest, mut scales) = values.split_at_mut(params);
        for (i, (param, ends)) in segment.params().iter().zip(layout.params.windows(2)).enumerate() {
            let (memory, after) = rest.split_at_mut(ends[1] - ends[0]);
            let (of_param, others) = scales.split_at_mut(layout.scales[i].map_or(0, |(_, len)| len));
            let rows = segment.rows(i, slab);
            places.push(Place { param, int8: segment.int8(i), w8: segment.w8(i), rows, memory, scales: of_param });
            (rest, scales) = (after, others);
        }
    }
    places.into_par_iter().try_for_each(|place| fill(place, source, layout))
}

/// Where a parameter is packed.
struct Place<'a, T> {
    param: &'a ParamSpec,
    /// If it is in 8-bit integers for the CPU.
    int8: Option<Int8Param>,
    /// If it is in bytes for GPUs.
    w8: Option<W8Matrix>,
    /// Its rows, if they have a type of their own.
    rows: Option<StoredRows>,
    memory: &'a mut [T],
    /// Room for the scales of a parameter in bytes for GPUs; empty for others.
    scales: &'a mut [T],
}

impl Slab {
    /// Views into `slab`, the flat memory of `segment` with parameters of these types in `layout`.
    pub(crate) fn new(segment: &Segment, slab: &Tensor, types: SlabType, layout: WeightLayout) -> Result<Self> {
        let SlabLayout { params: offsets, scales, .. } = SlabLayout::of(segment, types);
        let view = |(i, param): (usize, &ParamSpec)| -> Result<View> {
            let offset = &offsets[i];
            if let Some(Int8Param { input, .. }) = segment.int8(i) {
                let memory = slab.narrow(0, *offset, offsets[i + 1] - offset)?;
                return Ok(View::Weight(Weight::int8(&memory, param.packing, &param.shape, input)?));
            }
            if let (Some((start, len)), Some(matrix)) = (scales[i], segment.w8(i)) {
                let memory = slab.narrow(0, *offset, offsets[i + 1] - offset)?;
                let scales = slab.narrow(0, start, len)?;
                return Ok(View::Weight(Weight::w8(matrix.number(), &memory, &scales, param.packing, &param.shape)?));
            }
            if let Some(StoredRows { kind, n, k, .. }) = segment.rows(i, types) {
                let rows = slab.narrow(0, *offset, offsets[i + 1] - offset)?;
                return Ok(View::Weight(Weight::rows(&rows, kind, [n, k], 1)?));
            }
            let packed = slab.narrow(0, *offset, param.packed_elements())?;
            Ok(match param.packing {
                Packing::AsStored => View::Tensor(packed.reshape(param.shape.as_slice())?),
                packing => View::Weight(Weight::packed(&packed, packing, layout, &param.shape)?),
            })
        };
        let views = segment.params().iter().enumerate().map(view).collect::<Result<_>>()?;
        let stack = |stack: &Stack| -> Result<Option<View>> {
            let all = stack.first..stack.first + stack.count;
            if all.clone().any(|i| segment.eight_bits(i) == Some(EightBits::Int8)) {
                return Ok(None);
            }
            let param = &segment.params()[stack.first];
            if let (Some((first, len)), Some(matrix)) = (scales[stack.first], segment.w8(stack.first)) {
                let memory = slab.narrow(0, offsets[all.start], offsets[all.end] - offsets[all.start])?;
                let scales = slab.narrow(0, first, stack.count * len)?;
                let stacked = [stack.count * param.shape[0], param.shape[1]];
                let weight = Weight::w8(matrix.number(), &memory, &scales, param.packing, &stacked)?;
                return Ok(Some(View::Weight(weight)));
            }
            if types.matrices.is_none() && !segment.is_uniform(stack) {
                return Ok(None);
            }
            if let Some(StoredRows { kind, n, k, .. }) = segment.rows(stack.first, types) {
                let (start, end) = (offsets[stack.first], offsets[stack.first + stack.count]);
                let rows = slab.narrow(0, start, end - start)?;
                return Ok(Some(View::Weight(Weight::rows(&rows, kind, [stack.count * n, k], stack.count)?)));
            }
            let packed = slab.narrow(0, offsets[stack.first], stack.count * param.packed_elements())?;
            if param.packing == Packing::AsStored {
                return Ok(Some(View::Tensor(packed)));
            }
            let stacked = [stack.count * param.shape[0], param.shape[1]];
            Ok(Some(View::Weight(Weight::packed(&packed, param.packing, layout, &stacked)?)))
        };
        let stacks = segment.stacks().iter().map(stack).collect::<Result<_>>()?;
        Ok(Self { views, stacks, memory: Some(slab.clone()), held: None })
    }
}

fn fill<T: Element>(to: Place<'_, T>, source: &dyn ParamSource, layout: WeightLayout) -> Result<()> {
    let Place { param, int8, w8, rows, memory: place, scales } = to;
    let origin = || source.origin(&param.key);
    let Some(data) = source.data(&param.key)? else {
        return Err(Error::Missing { origin: origin(), key: param.key.clone(), expected: param.shape.clone() });
    };
    let stored = Stored::new(data.info.dtype, &data.bytes, param.elements());
    let stored = stored.ok_or_else(|| Error::StoredDType {
        origin: origin(),
        key: param.key.clone(),
        found: format!("{:?}", data.info.dtype),
    })?;
    if !stored.has_finite_scales() {
        return Err(Error::Scale { origin: origin(), key: param.key.clone(), dtype: data.info.dtype });
    }
    match rows {
        _ if let Some(Int8Param { matrix, input }) = int8 => {
            let places = place.par_chunks_exact_mut(matrix.panel_bytes() / size_of::<T>());
            places.take(matrix.panels()).enumerate().for_each(|(panel, place)| {
                let bytes = matrix.panel(panel, input.balance.as_deref(), |start, out| stored.read(start, out));
                T::copy(&bytes, place);
            });
        }
        _ if let Some(matrix) = w8 => {
            let rows = place.par_chunks_exact_mut(matrix.row_bytes() / size_of::<T>());
            let rows = rows.zip(scales.par_chunks_exact_mut(size_of::<f32>() / size_of::<T>()));
            rows.enumerate().for_each_init(
                || vec![0; matrix.row_bytes()],
                |bytes, (row, (place, scale))| {
                    let of_row = matrix.row(row, |start, out| stored.read(start, out), bytes);
                    T::copy(bytes, place);
                    T::copy(&of_row.to_le_bytes(), scale);
                },
            );
        }
        Some(rows) => rows::store(rows, data.info.dtype, &data.bytes, &stored, place)?,
        None => {
            let place = &mut place[..param.packed_elements()];
            param.packing.pack(layout, &param.shape, |start, out| stored.read(start, out), place);
        }
    }
    source.release(&param.key);
    Ok(())
}
