//! The models that the server has, by their names.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use kiln_engine::{PromptCounter, Setup};
use kiln_models::ModelFolder;

use crate::error::{Error, Refused, Result};
use crate::options::ServeOptions;

/// A model of the server.
#[derive(Clone)]
pub(crate) struct Model {
    /// Its name in requests.
    pub(crate) id: String,
    pub(crate) folder: Arc<ModelFolder>,
    /// Counts the tokens of its prompts, from the first request on.
    counter: Arc<OnceLock<PromptCounter>>,
}

impl Model {
    /// The counter of the tokens of its prompts, opened the first time.
    ///
    /// # Errors
    /// [`Refused`] for tokenizers that cannot be read.
    pub(crate) fn counter(&self, setup: &Setup) -> std::result::Result<&PromptCounter, Refused> {
        match self.counter.get() {
            Some(counter) => Ok(counter),
            None => {
                let counter = PromptCounter::open(&self.folder, setup.embeddings_dir.as_deref())?;
                Ok(self.counter.get_or_init(|| counter))
            }
        }
    }
}

/// All models, at least one.
pub(crate) struct Models(Vec<Model>);

impl Models {
    /// Opens the models. No weights are read.
    ///
    /// # Errors
    /// Those of [`ModelFolder::open_with`], and [`Error::Value`] where two models have one name.
    pub(crate) fn open(options: &ServeOptions) -> Result<Self> {
        let mut models: Vec<Model> = Vec::new();
        for path in &options.models {
            let folder = ModelFolder::open_with(path, &options.model_options)?;
            let id = folder.name();
            if let Some(other) = models.iter().find(|other| other.id == id) {
                let (one, other) = (path.display(), other.folder.path().display());
                let expected = format!("models with different names; both {other} and {one} are called {id}");
                return Err(Error::Value { name: "model", found: one.to_string(), expected });
            }
            models.push(Model { id, folder: Arc::new(folder), counter: Arc::default() });
        }
        if models.is_empty() {
            return Err(Error::Value { name: "model", found: "not given".into(), expected: "at least one".into() });
        }
        Ok(Self(models))
    }

    /// All of them, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Model> {
        self.0.iter()
    }

    /// The first one.
    pub(crate) fn first(&self) -> &Model {
        &self.0[0]
    }

    /// The model of this name; the first one where there is none. What other programs write around a name is left out: folders,
    /// the ending of a file, and a hash as in `name.safetensors [6ce0161689]`.
    pub(crate) fn find(&self, name: Option<&str>) -> std::result::Result<&Model, Refused> {
        let Some(name) = name else { return Ok(self.first()) };
        let plain = name.split_once(" [").map_or(name, |(name, _)| name).trim();
        let path = Path::new(plain);
        let part = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
        let names = [Some(name.to_string()), Some(plain.into()), part(path.file_name()), part(path.file_stem())];
        let found = names.iter().flatten().find_map(|name| self.0.iter().find(|model| model.id == *name));
        found.ok_or_else(|| {
            let known: Vec<&str> = self.0.iter().map(|model| model.id.as_str()).collect();
            let message = format!("`model` is {name:?}, expected one of {}", known.join(", "));
            Refused { param: Some("model".into()), ..Refused::not_found(message) }
        })
    }
}
