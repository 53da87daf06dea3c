//! Feed-forward layers of transformers: two linear layers around an activation, gated or not.

use kiln_ops::{Activated, Activation, Hidden};
use kiln_weights::ParamBuilder;

use crate::error::Result;
use crate::linear::Linear;
use crate::tensor::TensorLike;

/// A linear layer, an activation, and another linear layer.
pub struct Mlp {
    first: Linear,
    function: Activation,
    last: Linear,
}

impl Mlp {
    /// Declares two linear layers of the given names, from the first of `channels` to the second and on to the third.
    pub fn new(p: &ParamBuilder<'_>, names: [&str; 2], channels: [usize; 3], function: Activation, bias: bool) -> Self {
        Self::behind(p, names, 0, channels, function, bias)
    }

    /// [`Mlp::new`] with `before` channels more in the input of the last layer, which are not those of the activation.
    pub fn behind(
        p: &ParamBuilder<'_>,
        [first, last]: [&str; 2],
        before: usize,
        channels: [usize; 3],
        function: Activation,
        bias: bool,
    ) -> Self {
        let [from, hidden, to] = channels;
        Self {
            first: Linear::new(&p.pp(first).allows_8_bits(), from, hidden, bias),
            function,
            last: Linear::new(&p.pp(last).allows_8_bits(), before + hidden, to, bias),
        }
    }

    /// `x` `(.., channels[0])` to `(.., channels[2])`.
    pub fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        self.forward_behind(None, x.clone())
    }

    /// [`Mlp::forward`] with the channels `before` `(.., m)` before those of the activation. Both operands are dropped as early as
    /// possible.
    pub fn forward_behind<T: TensorLike>(&self, before: Option<T>, x: T) -> Result<T> {
        let Self { first, function, last } = self;
        if last.is_fused() {
            let hidden = Hidden::Plain(first.forward(&x)?);
            drop(x);
            return last.forward_activation(Activated { before, hidden, function: *function }, None);
        }
        last.forward(&first.forward_activated(x, *function, before)?)
    }
}

/// A gated feed-forward layer (Shazeer, arXiv 2002.05202): `last(function(gate(x)) values(x))`, without biases. T5, Qwen3,
/// Z-Image and FLUX.2 have it.
pub struct GatedFeedForward {
    input: Input,
    function: Activation,
    last: Linear,
}

/// The linear layers of gates and values.
enum Input {
    Separate([Linear; 2]),
    /// One layer, whose output has the gates before the values.
    Joint(Linear),
}

impl GatedFeedForward {
    /// Declares linear layers of the names `[gate, values, last]`.
    pub fn new(p: &ParamBuilder<'_>, names: [&str; 3], channels: usize, hidden: usize, function: Activation) -> Self {
        let [gate, values, last] = names.map(|name| p.pp(name).allows_8_bits());
        let input = [gate, values].map(|p| Linear::new(&p, channels, hidden, false));
        Self { input: Input::Separate(input), function, last: Linear::new(&last, hidden, channels, false) }
    }

    /// Declares linear layers of the names `[input, last]`, of which the first has the gates before the values.
    pub fn joint(p: &ParamBuilder<'_>, names: [&str; 2], channels: usize, hidden: usize, function: Activation) -> Self {
        let [input, last] = names.map(|name| p.pp(name).allows_8_bits());
        Self {
            input: Input::Joint(Linear::new(&input, channels, 2 * hidden, false)),
            function,
            last: Linear::new(&last, hidden, channels, false),
        }
    }

    /// `x` `(.., channels)`, same shape; with `residual` of this shape added, if there is one.
    pub fn forward<T: TensorLike>(&self, x: &T, residual: Option<&T>) -> Result<T> {
        let hidden = match &self.input {
            Input::Separate([gates, values]) => {
                Hidden::Separate { gates: gates.forward(x)?, values: values.forward(x)? }
            }
            Input::Joint(input) => Hidden::Joint(input.forward(x)?),
        };
        self.last.forward_activation(Activated { before: None, hidden, function: self.function }, residual)
    }
}
