//! The files and methods of the server, by the names that ComfyUI's nodes give them.

use std::path::PathBuf;

use kiln_engine::{LoraName, Request, embedding_names, find_lora, lora_files};
use kiln_request::comfy::stem;
use kiln_request::settings::programs::comfyui;

use super::files::{Files, Kind};
use crate::app::App;
use crate::named_files::{self, control_networks, image_encoders, ip_adapters, upscalers};

/// A list of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    /// Models. Their text encoders and VAEs have their names.
    Models,
    Loras,
    Controls,
    Upscalers,
    /// IP-Adapters.
    Adapters,
    /// Image encoders next to the IP-Adapters.
    Encoders,
    /// The images that the client has sent.
    Images,
    Samplers,
    Schedulers,
}

/// Names of that program's samplers (`SAMPLER_NAMES` of comfy/samplers.py), in its order. Those that Kiln has are listed.
const SAMPLERS: [&str; 45] = [
    "euler",
    "euler_cfg_pp",
    "euler_ancestral",
    "euler_ancestral_cfg_pp",
    "heun",
    "heunpp2",
    "dpm_2",
    "dpm_2_ancestral",
    "lms",
    "dpm_fast",
    "dpm_adaptive",
    "dpmpp_2s_ancestral",
    "dpmpp_2s_ancestral_cfg_pp",
    "dpmpp_sde",
    "dpmpp_sde_gpu",
    "dpmpp_2m",
    "dpmpp_2m_cfg_pp",
    "dpmpp_2m_sde",
    "dpmpp_2m_sde_gpu",
    "dpmpp_2m_sde_heun",
    "dpmpp_2m_sde_heun_gpu",
    "dpmpp_3m_sde",
    "dpmpp_3m_sde_gpu",
    "ddpm",
    "lcm",
    "ipndm",
    "ipndm_v",
    "deis",
    "res_multistep",
    "res_multistep_cfg_pp",
    "res_multistep_ancestral",
    "res_multistep_ancestral_cfg_pp",
    "gradient_estimation",
    "gradient_estimation_cfg_pp",
    "er_sde",
    "seeds_2",
    "seeds_3",
    "sa_solver",
    "sa_solver_pece",
    "ddim",
    "uni_pc",
    "uni_pc_bh2",
    "restart",
    "dpmpp_2s",
    "tcd",
];
/// Names of its schedules (`SCHEDULER_NAMES`).
const SCHEDULERS: [&str; 9] = [
    "simple",
    "sgm_uniform",
    "karras",
    "exponential",
    "ddim_uniform",
    "beta",
    "normal",
    "linear_quadratic",
    "kl_optimal",
];

/// The lists for a client.
pub(crate) struct Lists<'a> {
    pub(crate) app: &'a App,
    /// Whose images are listed.
    pub(crate) owner: &'a str,
}

impl Lists<'_> {
    /// The names of a list.
    pub(crate) fn names(&self, list: List) -> Vec<String> {
        let options = &self.app.options;
        match list {
            List::Models => self.models(),
            List::Loras => {
                let files = options.setup().lora_dir.as_deref().and_then(|folder| lora_files(folder).ok());
                files.unwrap_or_default().into_iter().map(file_name).collect()
            }
            List::Controls => control_networks(options.control_dir.as_deref()).into_iter().map(file_name).collect(),
            List::Upscalers => upscalers(options.upscaler_dir.as_deref()).into_iter().map(file_name).collect(),
            List::Adapters => ip_adapters(options.ip_adapters_dir.as_deref()).into_iter().map(file_name).collect(),
            List::Encoders => image_encoders(options.ip_adapters_dir.as_deref()).into_iter().map(file_name).collect(),
            List::Images => self.files().names(self.owner, Kind::Input),
            List::Samplers => SAMPLERS.iter().filter(|name| is_sampler(name)).map(ToString::to_string).collect(),
            List::Schedulers => SCHEDULERS.iter().filter(|name| is_schedule(name)).map(ToString::to_string).collect(),
        }
    }

    /// Whether a name is one of a list. Files may be written with and without their endings and folders.
    pub(crate) fn has(&self, list: List, name: &str) -> bool {
        let options = &self.app.options;
        match list {
            List::Models => self.app.models.find(Some(name)).is_ok(),
            List::Loras => {
                let folder = options.setup().lora_dir.as_deref();
                find_lora(&LoraName::Named(stem(name).into()), folder).is_ok()
            }
            List::Controls => {
                named_files::find(&control_networks(options.control_dir.as_deref()), stem(name)).is_some()
            }
            List::Upscalers => named_files::find(&upscalers(options.upscaler_dir.as_deref()), stem(name)).is_some(),
            List::Adapters => named_files::find(&ip_adapters(options.ip_adapters_dir.as_deref()), stem(name)).is_some(),
            List::Encoders => {
                named_files::find(&image_encoders(options.ip_adapters_dir.as_deref()), stem(name)).is_some()
            }
            List::Images => self.app.comfy.find(self.owner, name).is_some(),
            List::Samplers => SAMPLERS.contains(&name) && is_sampler(name),
            List::Schedulers => SCHEDULERS.contains(&name) && is_schedule(name),
        }
    }

    /// The names of embeddings.
    pub(crate) fn embeddings(&self) -> Vec<String> {
        embedding_names(self.app.options.setup().embeddings_dir.as_deref())
    }

    fn files(&self) -> &Files {
        &self.app.comfy.files
    }

    /// Models by the names of their files or folders, and their other names.
    fn models(&self) -> Vec<String> {
        let name = |model: &crate::models::Model| match model.folder.path() {
            path if path.is_file() => file_name((model.id.clone(), path.to_path_buf())),
            _ => model.id.clone(),
        };
        let own = self.app.models.iter().map(name);
        own.chain(self.app.models.aliases().map(|(alias, _)| alias.to_string())).collect()
    }
}

/// The name of a file with its ending, or what it is listed as.
fn file_name((name, path): (String, PathBuf)) -> String {
    match path.file_name() {
        Some(file) if stem(&file.to_string_lossy()) == name => file.to_string_lossy().into_owned(),
        _ => name,
    }
}

fn is_sampler(name: &str) -> bool {
    comfyui(&mut Request::default(), name, "normal").is_ok()
}

fn is_schedule(name: &str) -> bool {
    comfyui(&mut Request::default(), "euler", name).is_ok()
}
