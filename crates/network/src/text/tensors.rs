//! One text as the denoiser takes it: named tensors.

use candle_core::Tensor;

/// The rows that cross-attention sees, `(1, tokens, d)`.
pub const CONTEXT: &str = "context";
/// The vector of a whole text, `(1, d)`.
pub const POOLED: &str = "pooled";
/// The number of rows that are not filling, `(1)` in f32: the first ones. A text without it has no filling.
pub const LENGTH: &str = "length";

/// The tensors of an encoded text by name, in the order in which they were added. The first dimension of each is 1: the row in
/// the denoiser's batch.
#[derive(Debug, Clone)]
pub struct TextTensors<T = Tensor> {
    entries: Vec<(&'static str, T)>,
}

impl<T> Default for TextTensors<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<T> TextTensors<T> {
    /// The tensors with another one, which replaces one of the same name.
    pub fn with(mut self, name: &'static str, value: T) -> Self {
        match self.entries.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.entries.push((name, value)),
        }
        self
    }

    /// The tensor of a name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.entries.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// All tensors in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &T)> {
        self.entries.iter().map(|(name, value)| (*name, value))
    }

    /// Other tensors under the same names, each made by `f`.
    ///
    /// # Errors
    /// Errors of `f`.
    pub fn map<U, E>(&self, mut f: impl FnMut(&T) -> Result<U, E>) -> Result<TextTensors<U>, E> {
        let entries = self.entries.iter().map(|(name, value)| Ok((*name, f(value)?)));
        Ok(TextTensors { entries: entries.collect::<Result<_, E>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_ordered() {
        let all = TextTensors::default().with(CONTEXT, 1).with(POOLED, 2).with(CONTEXT, 3);
        assert_eq!(all.iter().collect::<Vec<_>>(), [(CONTEXT, &3), (POOLED, &2)]);
        assert_eq!(all.get("mask"), None);
        let doubled = all.map(|value| Ok::<_, ()>(value * 2)).unwrap();
        assert_eq!(doubled.get(POOLED), Some(&4));
        assert!(all.map(|_| Err::<(), _>("no")).is_err());
    }
}
