//! The ways in which a layer may be computed in 8 bits, and their errors.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Tensor};
use kiln_ops::{Conv2d, Conv2dInputs, Weight, conv2d, linear};
use kiln_weights::{InputObserver, Int8Input, ParamSpec};

use super::ranges::ChannelRanges;
use crate::error::Result;
use crate::scales_file::LayerScales;

/// The calls of a layer that are compared: about this many, spread over all of its calls.
const COMPARED: f64 = 8.0;
/// The fractional part of the golden ratio: its multiples are spread evenly, whatever repeats among the calls.
const SPREAD: f64 = 0.618_033_988_749_894_9;
/// Compares a layer in 8 bits with the same layer in its own type.
#[derive(Debug)]
pub(super) struct WayObserver {
    /// The share of the calls that are compared.
    share: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    ways: Vec<Way>,
    /// The squares of the outputs in the layer's own type.
    squares: f64,
    calls: usize,
}

#[derive(Debug)]
struct Way {
    input: Arc<Int8Input>,
    weight: Weight,
    /// The squares of the errors.
    error: f64,
}

impl WayObserver {
    /// For the weight `param` with these elements, and inputs with these ranges. `None` if it is not computed in 8 bits.
    ///
    /// # Errors
    /// Errors of the operators.
    pub(super) fn new(param: &ParamSpec, values: &[f32], ranges: &ChannelRanges) -> Result<Option<Self>> {
        let Some(matrix) = param.int8_matrix() else { return Ok(None) };
        let balances: [Option<Arc<[f32]>>; 2] = [None, Some(ranges.balance(param, values).into())];
        let mut ways = Vec::new();
        for balance in balances {
            let whole = ranges.whole(balance.as_deref());
            let memory = matrix.memory(values, balance.as_deref())?;
            for range in [None, Some(whole)] {
                let input = Arc::new(Int8Input { range, balance: balance.clone() });
                let weight = Weight::int8(&memory, param.packing, &param.shape, input.clone())?;
                ways.push(Way { input, weight, error: 0.0 });
            }
        }
        let state = State { ways, squares: 0.0, calls: 0 };
        Ok(Some(Self { share: COMPARED / ranges.calls.max(1) as f64, state: Mutex::new(state) }))
    }

    /// The way of the layer with the weight `name` and inputs with these ranges: the best one with a range for all calls, if its
    /// squared error is at most `tolerance` times that of the best one with a range for each call, else the latter.
    pub(super) fn best(&self, name: &str, ranges: &ChannelRanges, tolerance: f64) -> Option<LayerScales> {
        let State { ways, squares, .. } = &*self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let least = |is_dynamic: bool| {
            let ways = ways.iter().filter(move |way| way.input.range.is_none() == is_dynamic);
            ways.min_by(|a, b| a.error.total_cmp(&b.error))
        };
        let (dynamic, fixed) = (least(true)?, least(false)?);
        let best = if fixed.error <= tolerance * dynamic.error { fixed } else { dynamic };
        for Way { input, error, .. } in ways {
            let (range, is_balanced, error) = (input.range, input.balance.is_some(), error / squares);
            tracing::debug!(name, ?range, is_balanced, error, "computed in 8 bits");
        }
        let balance = best.input.balance.clone();
        Some(LayerScales {
            range: ranges.whole(balance.as_deref()),
            absmax: ranges.absmax(),
            balance,
            error: (best.error / squares.max(f64::MIN_POSITIVE)) as f32,
            is_dynamic: best.input.range.is_none(),
            is_kept: false,
        })
    }
}

impl InputObserver for WayObserver {
    fn observe(&self, x: &Tensor, weight: &Weight, config: Option<Conv2d>) -> kiln_ops::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { ways, squares, calls } = &mut *state;
        let is_compared = (*calls as f64 * SPREAD).fract() < self.share; // the first one is
        *calls += 1;
        if !is_compared {
            return Ok(());
        }
        let run = |weight: &Weight| -> kiln_ops::Result<Vec<f32>> {
            let y = match config {
                Some(config) => {
                    conv2d(Conv2dInputs { x, weight, bias: None, image_bias: None, residual: None }, config, None)?
                }
                None => linear(x, weight, None, None, None)?,
            };
            Ok(y.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
        };
        let expected = run(weight)?;
        *squares += expected.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        for way in ways {
            let found = run(&way.weight)?;
            way.error += found.iter().zip(&expected).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        }
        Ok(())
    }
}
