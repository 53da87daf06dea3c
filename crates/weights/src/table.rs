//! Rows of tables that stay in their source.

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};

use crate::element::{Element, Stored};
use crate::error::{Error, Result};
use crate::source::ParamSource;

/// The rows `indices` of the table `key` of this shape, converted to `dtype` as a slab's elements are: `(indices.len(), ..)` on the CPU.
///
/// # Errors
/// [`Error::Missing`] and [`Error::StoredDType`] name the tensor and the file; [`Error::SlabDType`].
pub(crate) fn read_rows(
    source: &dyn ParamSource,
    key: &str,
    shape: &[usize],
    indices: &[u32],
    dtype: DType,
) -> Result<Tensor> {
    match dtype {
        DType::F32 => read_as::<f32>(source, key, shape, indices),
        DType::F16 => read_as::<f16>(source, key, shape, indices),
        DType::BF16 => read_as::<bf16>(source, key, shape, indices),
        other => Err(Error::SlabDType(other)),
    }
}

fn read_as<T: Element>(source: &dyn ParamSource, key: &str, shape: &[usize], indices: &[u32]) -> Result<Tensor> {
    let of_row: usize = shape.iter().skip(1).product();
    let mut values = T::zeros(indices.len() * of_row);
    for (&index, values) in indices.iter().zip(values.chunks_exact_mut(of_row.max(1))) {
        let row = index as usize;
        let Some(data) = source.rows(key, row..row + 1)? else {
            return Err(Error::Missing { origin: source.origin(key), key: key.into(), expected: shape.to_vec() });
        };
        let stored = Stored::new(data.info.dtype, &data.bytes, of_row).ok_or_else(|| Error::StoredDType {
            origin: source.origin(key),
            key: key.into(),
            found: format!("{:?}", data.info.dtype),
        })?;
        stored.read(0, values);
    }
    let shape: Vec<usize> = [&[indices.len()], shape.get(1..).unwrap_or_default()].concat();
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ldm::{Named, Subset, same_names};
    use crate::source::{ParamData, ParamInfo};
    use crate::{MapSource, Packing, Patched, Placement, Segments, load, load_open};
    use std::ops::Range;
    use std::sync::Arc;

    /// A source of one table, of which only rows are read: `[row, row]`.
    struct OnlyRows;

    impl ParamSource for OnlyRows {
        fn info(&self, _key: &str) -> Option<ParamInfo> {
            Some(ParamInfo { shape: vec![20, 2], dtype: safetensors::Dtype::F32.into() })
        }

        fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
            panic!("the whole of {key} was read");
        }

        fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
            let Some((info, _)) = self.info(key).and_then(|info| info.rows(&rows)) else { return Ok(None) };
            let bytes = rows.flat_map(|row| [row as f32; 2]).flat_map(f32::to_le_bytes).collect();
            Ok(Some(ParamData { info, bytes }))
        }

        fn origin(&self, _key: &str) -> String {
            "rows".into()
        }

        fn keys(&self) -> Vec<String> {
            vec!["part.t.weight".into()]
        }
    }

    /// Views of a source read a row as a row, and not as a part of the whole table.
    #[test]
    fn views_read_only_the_rows() {
        let source = Patched::new(Named::new(Subset::new(Arc::new(OnlyRows), "part."), same_names()));
        let rows = read_rows(&source, "t.weight", &[20, 2], &[19, 3], DType::F32).unwrap();
        assert_eq!(rows.to_vec2::<f32>().unwrap(), [[19.0, 19.0], [3.0, 3.0]]);
        assert!(read_rows(&source, "t.weight", &[20, 2], &[20], DType::F32).is_err());
    }

    /// Rows from the source have the bits of rows of a slab, in every type.
    #[test]
    fn rows_are_those_of_a_slab() {
        let values: Vec<f32> = (0..60).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
        let table = Tensor::from_vec(values, (20, 3), &Device::Cpu).unwrap();
        let source: Arc<dyn ParamSource> = Arc::new(MapSource::from_iter([("t.weight".to_string(), table)]));
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let placement = Placement::new(Device::Cpu, dtype);
            let mut segments = Segments::default();
            let module = segments.add_in_source("t", |p| p.pp("t").param("weight", &[20, 3], Packing::AsStored));
            assert_eq!((segments[0].bytes(dtype), segments[0].is_loaded()), (0, false));
            assert!(module.module().rows(&[1]).is_err(), "nothing is loaded");
            let rows = |indices: &[u32]| {
                let rows = module.enter().unwrap().rows(indices).unwrap();
                assert_eq!((rows.dtype(), rows.dims()), (dtype, [indices.len(), 3].as_slice()));
                rows.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap()
            };
            load_open(&segments, &source, &placement).unwrap();
            assert!(segments[0].is_loaded() && module.module().tensor().is_err(), "there is no slab");
            let (read, none) = (rows(&[19, 0, 7, 0]), rows(&[]));
            assert!(module.module().rows(&[20]).is_err());
            segments.unload();
            load(&segments, source.as_ref(), &placement).unwrap();
            assert_eq!((rows(&[19, 0, 7, 0]), rows(&[])), (read, none));
            segments.unload();
            assert!(!segments[0].is_loaded());
        }
    }
}
