//! Marks of networks: names of tensors that a file of one network has, and no other.

/// Tensors by which a file of a network is recognized, with or without a prefix such as `model.diffusion_model.`.
///
/// The names are those of diffusers, of transformers and of the networks' authors.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    /// The network with its article: `a FLUX.1 transformer`.
    pub label: &'static str,
    /// Ends of tensor names. A file has a tensor for each.
    pub names: &'static [&'static str],
    /// Parts of tensor names. A file has a tensor for each.
    pub parts: &'static [&'static str],
}

impl Mark {
    /// A file with all of `names`.
    pub const fn names(label: &'static str, names: &'static [&'static str]) -> Self {
        Self { label, names, parts: &[] }
    }

    /// A file with `part` in a name.
    pub const fn part(label: &'static str, part: &'static [&'static str]) -> Self {
        Self { label, names: &[], parts: part }
    }

    /// Whether the file with the tensors `keys` has this mark. `None` if it has not, else the prefix of its names.
    pub(crate) fn prefix<'a>(&self, keys: &'a [String]) -> Option<&'a str> {
        let mut prefix = "";
        for name in self.names {
            prefix = keys.iter().find_map(|key| prefix_of(key, name))?;
        }
        if !self.parts.iter().all(|part| keys.iter().any(|key| key.contains(part))) {
            return None;
        }
        Some(prefix)
    }
}

/// The text before `name` in `key`, if that is empty or ends with a dot.
fn prefix_of<'a>(key: &'a str, name: &str) -> Option<&'a str> {
    key.strip_suffix(name).filter(|rest| rest.is_empty() || rest.ends_with('.'))
}
