//! The name of an input, and the rules for its tensors.

/// Which rows of a batch the first dimension of a tensor counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One for each row of the batch.
    Each,
    /// One for each of the last rows of the batch, of which there may be fewer than all.
    Last,
    /// None: all rows share the tensor.
    Shared,
}

/// How a call uses a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// The call reads it. The values stay the same from step to step.
    Input,
    /// The call reads the values of an earlier call's output.
    State,
    /// The call may overwrite it, and may read what an earlier call has written.
    Output,
}

/// A kind of input. Slots with the same name hold the same kind of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The name, which is unique among the inputs of a network.
    pub name: &'static str,
    /// The rows of its tensors.
    pub rows: Rows,
    /// How a call uses its tensors.
    pub access: Access,
    /// Whether its tensors keep their type in a network of another type.
    pub keeps_dtype: bool,
}

impl Slot {
    /// A slot for tensors with a row for each row of the batch.
    pub const fn each(name: &'static str) -> Self {
        Self { name, rows: Rows::Each, access: Access::Input, keeps_dtype: false }
    }

    /// A slot for tensors with a row for each of the last rows of the batch.
    pub const fn last(name: &'static str) -> Self {
        Self { rows: Rows::Last, ..Self::each(name) }
    }

    /// A slot for tensors that all rows share.
    pub const fn shared(name: &'static str) -> Self {
        Self { rows: Rows::Shared, ..Self::each(name) }
    }

    /// A slot for tensors that keep their type.
    pub const fn keeping_dtype(self) -> Self {
        Self { keeps_dtype: true, ..self }
    }

    /// A slot for tensors that the call may overwrite.
    pub const fn output(self) -> Self {
        Self { access: Access::Output, ..self }
    }

    /// A slot for tensors that an earlier call has written.
    pub const fn state(self) -> Self {
        Self { access: Access::State, ..self }
    }
}
