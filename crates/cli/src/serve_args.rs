//! The arguments of `kiln serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};
use kiln_engine::ByteSize;
use kiln_serve::{Access, GalleryAccess, Limits, ServeOptions, Tls};

use crate::help::ACCESS;
use crate::preview_args::PreviewArgs;
use crate::run_args::{PromptCache, RunArgs};
use crate::values::{parse_as, parse_count, parse_size};

/// `kiln serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The address to listen on, with its port; port 0 is any that is free.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7860")]
    listen: SocketAddr,
    /// The most images that share a step. Default: 1 on the CPU; on a GPU 8 of the model's size, at least 8 of 512x512, fewer larger
    /// ones, or up to 32 smaller ones.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    max_batch: Option<usize>,
    /// Milliseconds that a step waits for a batch to fill if nothing runs.
    #[arg(long, value_name = "MS", default_value = "0", allow_negative_numbers = true, value_parser = parse_count)]
    max_delay_ms: usize,
    /// Seconds that a job waits at most behind jobs of another model that have not started. Default: about four times the time that
    /// loading took.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = parse_count)]
    max_wait: Option<usize>,
    /// The most models in memory at once. Default: as many as fit; the least recently used one leaves.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    max_loaded: Option<usize>,
    /// Sizes of which an image is made whenever a model was loaded, before the server is ready: 1024x1024,512x512. The first request
    /// of such a size is then as fast as others.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size)]
    warm: Vec<(usize, usize)>,
    /// Stays ready while memory is too short for the next images, by the plan of the last ones. Otherwise /readyz answers 503 then.
    #[arg(long)]
    ready_without_memory: bool,
    /// The most jobs of one client that run at once while others wait; 0 is for no limit.
    #[arg(long, value_name = "N", default_value = "4", allow_negative_numbers = true, value_parser = parse_count)]
    max_per_client: usize,
    /// The most jobs that wait.
    #[arg(long, value_name = "N", default_value = "256", allow_negative_numbers = true, value_parser = parse_count)]
    queue: usize,
    /// Seconds for which finished jobs and their images are kept.
    #[arg(long, value_name = "SECONDS", default_value = "600", allow_negative_numbers = true, value_parser = parse_count)]
    keep: usize,

    /// A folder into which all images are written, with their settings. It is created if it is missing.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Access of clients to the images of that folder, in the gallery of the page: off, read, or full, with deletion.
    #[arg(long, value_name = "ACCESS", default_value = "full", value_parser = parse_as::<GalleryAccess>, requires = "output",
          help_heading = ACCESS)]
    gallery: GalleryAccess,
    /// The folder of control networks that requests name.
    #[arg(long, value_name = "DIR")]
    control_dir: Option<PathBuf>,
    /// The folder of IP-Adapters that requests name, with their image encoders.
    #[arg(long, value_name = "DIR")]
    ip_adapters_dir: Option<PathBuf>,
    /// The folder of upscalers that requests name.
    #[arg(long, value_name = "DIR")]
    upscaler_dir: Option<PathBuf>,
    /// The folder of ComfyUI's page, which is then shown at /comfy/: static of the Python package comfyui-frontend-package.
    #[arg(long, value_name = "DIR")]
    front_end_root: Option<PathBuf>,
    /// The folder in which ComfyUI's page keeps settings and workflows. Default: they are lost when the server ends.
    #[arg(long, value_name = "DIR")]
    user_directory: Option<PathBuf>,
    /// Another name of a model in requests: NAME=MODEL, as my-model=emoji. Can be repeated.
    #[arg(long, value_name = "NAME=MODEL", value_parser = parse_alias)]
    model_alias: Vec<(String, String)>,
    /// The address of a collector of OpenTelemetry's traces, over HTTP: http://127.0.0.1:4318. OTEL_SERVICE_NAME and
    /// OTEL_RESOURCE_ATTRIBUTES name the service.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp: Option<String>,

    /// A key that requests must have: Authorization: Bearer KEY. Can be repeated.
    #[arg(long, value_name = "KEY", env = "KILN_API_KEY", hide_env_values = true, help_heading = ACCESS)]
    api_key: Vec<String>,
    /// Users and passwords, one of which requests must have: USER:PASSWORD,USER:PASSWORD.
    #[arg(long, value_name = "USER:PASSWORD", env = "KILN_API_AUTH", hide_env_values = true, value_delimiter = ',',
          value_parser = parse_user, help_heading = ACCESS)]
    api_auth: Vec<(String, String)>,
    /// Clients with keys see and change each other's jobs and settings.
    #[arg(long, help_heading = ACCESS)]
    shared_jobs: bool,
    /// The highest priority that a request may ask for. Default: 100, or 0 where clients have keys and share no jobs.
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = ACCESS)]
    max_priority: Option<i32>,
    /// The secret of servers that share encoded prompts (--prompt-cache redis://..): values of other writers are not used.
    #[arg(long, value_name = "KEY", env = "KILN_PROMPT_CACHE_KEY", hide_env_values = true, help_heading = ACCESS)]
    prompt_cache_key: Option<String>,
    /// A certificate in PEM: connections are encrypted by TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = ACCESS)]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = ACCESS)]
    tls_key: Option<PathBuf>,
    /// Another origin whose pages may use the server, as https://example.org; * is for all. Can be repeated.
    #[arg(long, value_name = "ORIGIN", help_heading = ACCESS)]
    cors: Vec<String>,
    /// The most pixels of an image.
    #[arg(long, value_name = "N", default_value = "4194304", allow_negative_numbers = true, value_parser = parse_count,
          help_heading = ACCESS)]
    max_pixels: usize,
    /// The most steps of an image.
    #[arg(long, value_name = "N", default_value = "1000", allow_negative_numbers = true, value_parser = parse_count,
          help_heading = ACCESS)]
    max_steps: usize,
    /// The most images of a request.
    #[arg(long, value_name = "N", default_value = "64", allow_negative_numbers = true, value_parser = parse_count,
          help_heading = ACCESS)]
    max_images: usize,
    /// The most tokens of a prompt, over all of its texts: 75 for each chunk.
    #[arg(long, value_name = "N", default_value = "3000", allow_negative_numbers = true, value_parser = parse_count,
          help_heading = ACCESS)]
    max_tokens: usize,
    /// The most pixels of an input image, read from its header before it is decoded.
    #[arg(long, value_name = "N", default_value = "16777216", allow_negative_numbers = true, value_parser = parse_count,
          help_heading = ACCESS)]
    max_input_pixels: usize,
    /// The most pixels of an input image's longest side.
    #[arg(long, value_name = "N", default_value = "16384", allow_negative_numbers = true, value_parser = parse_count,
          help_heading = ACCESS)]
    max_input_side: usize,
    /// Seconds after which a job that is not done fails; 0 is for no limit.
    #[arg(long, value_name = "SECONDS", default_value = "0", allow_negative_numbers = true, value_parser = parse_count,
          help_heading = ACCESS)]
    max_seconds: usize,
    /// The largest body of a request. All bodies together may have four times as many bytes.
    #[arg(long, value_name = "SIZE", default_value = "64M", allow_hyphen_values = true, help_heading = ACCESS)]
    max_body: ByteSize,

    /// The most connections of one address; 0 is for no limit, as behind a proxy.
    #[arg(long, value_name = "N", default_value = "256", allow_negative_numbers = true, value_parser = parse_count,
          help_heading = ACCESS)]
    max_connections_per_address: usize,

    #[command(flatten)]
    previews: PreviewArgs,

    #[command(flatten)]
    pub served: Served,
}

/// How models run, and which: `--model` can be repeated.
#[derive(Debug)]
pub struct Served {
    /// The paths of the models; none is for the model that comes with Kiln.
    pub models: Vec<PathBuf>,
    /// The flags of every command that runs a model.
    pub run: RunArgs,
}

/// The argument of [`RunArgs`] that can be repeated here.
const MODEL: &str = "model";
/// The argument of [`RunArgs`] that takes the address of a store here, too.
const PROMPT_CACHE: &str = "prompt_cache";

impl Args for Served {
    fn augment_args(command: Command) -> Command {
        RunArgs::augment_args(command).mut_arg(MODEL, |arg| {
            let help = "A model that requests can name, as for `kiln txt2img`. The first one is the default. Can be repeated. \
                        Default: the model that comes with Kiln";
            arg.action(ArgAction::Append).help(help).long_help(help)
        })
        .mut_arg(PROMPT_CACHE, |arg| {
            let help = "Number of encoded prompts that are kept, or the address of a Redis or Valkey that shares them between \
                        servers: redis://HOST:PORT. Default: 32";
            arg.value_name("CACHE").value_parser(PromptCache::parse).help(help).long_help(help)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Served {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let models = matches.get_many::<PathBuf>(MODEL).into_iter().flatten().cloned().collect();
        Ok(Self { models, run: RunArgs::from_arg_matches(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// `USER:PASSWORD`; the password may have colons.
fn parse_user(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once(':').filter(|(user, password)| !user.is_empty() && !password.is_empty());
    pair.map(|(user, password)| (user.into(), password.into())).ok_or_else(|| "expected USER:PASSWORD".into())
}

/// `NAME=MODEL`.
fn parse_alias(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, model)| !name.is_empty() && !model.is_empty());
    pair.map(|(name, model)| (name.into(), model.into())).ok_or_else(|| "expected NAME=MODEL".into())
}

impl ServeArgs {
    /// The options of the server with these models.
    ///
    /// # Errors
    /// Where all GPUs are asked for and CUDA cannot list them.
    pub fn options(self, models: Vec<PathBuf>) -> kiln_engine::Result<ServeOptions> {
        Ok(ServeOptions {
            listen: self.listen,
            models,
            model_aliases: self.model_alias,
            model_options: self.served.run.model_options(),
            setups: self.served.run.setups()?.into_iter().map(|setup| self.previews.apply(setup)).collect(),
            limits: Limits {
                pixels: self.max_pixels,
                steps: self.max_steps,
                images: self.max_images,
                tokens: self.max_tokens,
                input_pixels: self.max_input_pixels,
                input_side: self.max_input_side,
                body: self.max_body.0,
                queue: self.queue,
                time: (self.max_seconds > 0).then(|| Duration::from_secs(self.max_seconds as u64)),
                priority: self.max_priority,
                connections_per_address: self.max_connections_per_address,
            },
            max_batch: self.max_batch,
            max_per_client: self.max_per_client,
            max_delay: Duration::from_millis(self.max_delay_ms as u64),
            max_wait: self.max_wait.map(|seconds| Duration::from_secs(seconds as u64)),
            max_loaded: self.max_loaded,
            front_end: self.front_end_root,
            user_dir: self.user_directory,
            warm: self.warm.clone(),
            memory_readiness: !self.ready_without_memory,
            control_dir: self.control_dir,
            ip_adapters_dir: self.ip_adapters_dir,
            upscaler_dir: self.upscaler_dir,
            output: self.output,
            gallery: self.gallery,
            // A variable of the environment may be set for servers without a store, too.
            prompt_store_key: self.prompt_cache_key.filter(|_| self.served.run.prompt_store().is_some()),
            prompt_store: self.served.run.prompt_store(),
            keep: Duration::from_secs(self.keep as u64),
            job_prefix: None,
            tls: self.tls_cert.zip(self.tls_key).map(|(certificate, key)| Tls { certificate, key }),
            otlp: self.otlp.filter(|url| !url.is_empty()),
            access: Access {
                keys: self.api_key,
                users: self.api_auth,
                origins: self.cors,
                shared_jobs: self.shared_jobs,
            },
        })
    }

    /// Whether others than this machine reach the server, and nothing is asked of them.
    pub fn is_open_to_others(&self) -> bool {
        !self.listen.ip().is_loopback() && self.api_key.is_empty() && self.api_auth.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> ServeArgs {
        use clap::Parser;
        let crate::args::Command::Serve(args) = crate::args::Args::try_parse_from(line).unwrap().command else {
            panic!("another command");
        };
        *args
    }

    #[test]
    fn prompts_are_kept_here_or_in_a_store() {
        let options = |cache: &str| parsed(&["kiln", "serve", "--prompt-cache", cache]).options(Vec::new()).unwrap();
        assert_eq!((options("7").setups[0].prompt_cache, options("7").prompt_store), (Some(7), None));
        let shared = options("redis://127.0.0.1:6379");
        assert_eq!(
            (shared.setups[0].prompt_cache, shared.prompt_store.as_deref()),
            (None, Some("redis://127.0.0.1:6379"))
        );
    }

    #[test]
    fn a_model_can_be_repeated() {
        let models = |line: &[&str]| parsed(line).served.models;
        assert_eq!(models(&["kiln", "serve", "-m", "a", "--model", "b"]), [PathBuf::from("a"), "b".into()]);
        assert_eq!(models(&["kiln", "serve"]), [] as [PathBuf; 0]);
    }

    #[test]
    fn models_may_have_other_names() {
        let args = parsed(&["kiln", "serve", "--model-alias", "gpt-image-1=emoji", "--model-alias", "b=c"]);
        let pair = |name: &str, model: &str| (name.to_string(), model.to_string());
        assert_eq!(args.options(Vec::new()).unwrap().model_aliases, [pair("gpt-image-1", "emoji"), pair("b", "c")]);
        for wrong in ["a", "a=", "=b"] {
            assert!(parse_alias(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_password_may_have_colons() {
        assert_eq!(parse_user("ann:a:b"), Ok(("ann".into(), "a:b".into())));
        for wrong in ["", "ann", "ann:", ":secret"] {
            assert!(parse_user(wrong).is_err(), "{wrong}");
        }
    }
}
