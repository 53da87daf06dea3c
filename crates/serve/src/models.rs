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
pub(crate) struct Models {
    all: Vec<Model>,
    /// Other names, each with the name of its model.
    aliases: Vec<(String, String)>,
}

/// Prefixes of OpenAI's own image models, which its clients send by default.
const OPENAI: [&str; 3] = ["gpt-image-", "dall-e-", "chatgpt-image-"];

impl Models {
    /// Opens the models. No weights are read.
    ///
    /// # Errors
    /// Errors of [`ModelFolder::open_with`], and [`Error::Value`] where two models have one name, or an alias is the name of a
    /// model or of none.
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
        let aliases = options.model_aliases.clone();
        for (alias, model) in &aliases {
            let is_known = |name: &String| models.iter().any(|known| known.id == *name);
            let expected = match (is_known(alias), is_known(model)) {
                (true, _) => format!("another name than {alias}, which is a model's own"),
                (_, true) => continue,
                _ => {
                    let known: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
                    format!("NAME=MODEL with one of the models {}", known.join(", "))
                }
            };
            return Err(Error::Value { name: "model_alias", found: format!("{alias}={model}"), expected });
        }
        Ok(Self { all: models, aliases })
    }

    /// Other names of models, each with its model.
    pub(crate) fn aliases(&self) -> impl Iterator<Item = (&str, &Model)> {
        let model = |id: &str| self.all.iter().find(|model| model.id == id);
        self.aliases.iter().filter_map(move |(alias, id)| Some((alias.as_str(), model(id)?)))
    }

    /// All of them, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Model> {
        self.all.iter()
    }

    /// The first one.
    pub(crate) fn first(&self) -> &Model {
        &self.all[0]
    }

    /// The model of this name; the first one without a name. Parts that other programs write around a name are ignored:
    /// folders, the ending of a file, and a hash as in `name.safetensors [6ce0161689]`.
    pub(crate) fn find(&self, name: Option<&str>) -> std::result::Result<&Model, Refused> {
        let Some(name) = name else { return Ok(self.first()) };
        let plain = name.split_once(" [").map_or(name, |(name, _)| name).trim();
        let path = Path::new(plain);
        let part = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
        let names = [Some(name.to_string()), Some(plain.into()), part(path.file_name()), part(path.file_stem())];
        let named = |name: &str| self.all.iter().find(|model| model.id == name);
        let other = |name: &str| self.aliases().find(|(alias, _)| *alias == name).map(|(_, model)| model);
        let found = names.iter().flatten().find_map(|name| named(name).or_else(|| other(name)));
        found.ok_or_else(|| {
            let own = self.all.iter().map(|model| model.id.as_str());
            let known: Vec<&str> = own.chain(self.aliases().map(|(alias, _)| alias)).collect();
            let message = format!("`model` is {name:?}, expected one of {}", known.join(", "));
            Refused::not_found(message).at("model")
        })
    }

    /// [`Self::find`] for OpenAI's clients: a name of OpenAI's own models that is none here is the first model.
    pub(crate) fn find_openai(&self, name: Option<&str>) -> std::result::Result<&Model, Refused> {
        let is_openai = |name: &str| OPENAI.iter().any(|begin| name.to_ascii_lowercase().starts_with(begin));
        match (self.find(name), name) {
            (Err(_), Some(name)) if is_openai(name) => {
                tracing::info!(name, model = self.first().id, "OpenAI's model is answered by the first one");
                Ok(self.first())
            }
            (found, _) => found,
        }
    }
}
