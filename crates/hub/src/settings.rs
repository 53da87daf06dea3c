//! Addresses of the Hub and the cache, and the user's token: the environment variables of Hugging Face's own tools.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

const ENDPOINT: &str = "https://huggingface.co";
/// The longest token file that is read.
const LONGEST_TOKEN: u64 = 4096;

/// Settings of a [`Hub`](crate::Hub). `Debug` shows neither the token nor a password in the endpoint.
#[derive(Clone)]
pub struct Settings {
    /// The Hub's address, with `https://` or `http://` and without a slash at its end (`HF_ENDPOINT`).
    pub endpoint: String,
    /// The cache's folder, which other tools share (`HF_HUB_CACHE`, else `HF_HOME/hub`, else
    /// `~/.cache/huggingface/hub`).
    pub cache: PathBuf,
    /// The user's token (`HF_TOKEN`, else the file `HF_TOKEN_PATH`, else `HF_HOME/token`). It is sent to the endpoint only,
    /// never to servers that the endpoint redirects to.
    pub token: Option<Token>,
    /// Use the cache only, make no connection (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// A file with the certificates to trust instead of the common authorities' (`SSL_CERT_FILE`, else
    /// `REQUESTS_CA_BUNDLE`).
    pub certificates: Option<PathBuf>,
    /// Download files of the Hub's Xet storage from there, in parallel chunks (unless `HF_HUB_DISABLE_XET` is set). It has no
    /// effect without the feature `xet`.
    pub xet: bool,
    /// The pause before a failed request is repeated for the first time. Later pauses are longer.
    pub pause: Duration,
}

impl Settings {
    /// Reads the environment. `offline` is an alternative to its variables.
    ///
    /// # Errors
    /// [`Error::Setting`] for values that cannot be used, [`Error::Io`] for a token file that cannot be read.
    pub fn from_env(offline: bool) -> Result<Self> {
        Self::of(&|name| std::env::var_os(name).filter(|value| !value.is_empty()), offline)
    }

    fn of(variable: &dyn Fn(&str) -> Option<OsString>, offline: bool) -> Result<Self> {
        let text = |name: &str| -> Result<Option<String>> {
            let not_text = |_| setting(name, "is not valid Unicode");
            variable(name).map(|value| value.into_string().map_err(not_text)).transpose()
        };
        let switch = |name: &str| -> Result<bool> {
            Ok(text(name)?.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())))
        };
        let path = |name: &str| variable(name).map(|value| expand(Path::new(&value), variable));
        let home =
            || match (path("HF_HOME"), path("XDG_CACHE_HOME").filter(|path| path.is_absolute()), user_folder(variable))
            {
                (Some(home), ..) => Ok(home),
                (None, Some(cache), _) => Ok(cache.join("huggingface")),
                (None, None, Some(user)) => Ok(user.join(".cache/huggingface")),
                (None, None, None) => Err(setting(
                    "HF_HOME",
                    "is not set, and HOME is no absolute path; set HF_HOME to the cache's folder",
                )),
            };
        let cache = match path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")) {
            Some(cache) => cache,
            None => home()?.join("hub"),
        };
        let offline = offline || switch("HF_HUB_OFFLINE")? || switch("TRANSFORMERS_OFFLINE")?;
        let token = match text("HF_TOKEN")?.or(text("HUGGING_FACE_HUB_TOKEN")?) {
            _ if offline || switch("HF_HUB_DISABLE_IMPLICIT_TOKEN")? => None,
            Some(token) => Token::new(&token, "HF_TOKEN")?,
            None => match path("HF_TOKEN_PATH").map_or_else(|| home().map(|home| home.join("token")), Ok) {
                Ok(file) => token_file(&file)?,
                Err(_) => None, // without a home folder there is no token file
            },
        };
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| ENDPOINT.into());
        let endpoint = endpoint.trim().trim_end_matches('/').to_string();
        if !["https://", "http://"].iter().any(|scheme| endpoint.len() > scheme.len() && endpoint.starts_with(scheme)) {
            let problem = format!("is `{}`, expected an address such as {ENDPOINT}", without_credentials(&endpoint));
            return Err(setting("HF_ENDPOINT", &problem));
        }
        let certificates = path("SSL_CERT_FILE").or_else(|| path("REQUESTS_CA_BUNDLE"));
        // A file with certificates is for all connections, and those to the Xet storage do not read it.
        let xet = !switch("HF_HUB_DISABLE_XET")? && certificates.is_none();
        Ok(Self { endpoint, cache, token, offline, certificates, xet, pause: Duration::from_secs(1) })
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, cache, token, offline, certificates, xet, pause } = self;
        f.debug_struct("Settings")
            .field("endpoint", &without_credentials(endpoint))
            .field("cache", cache)
            .field("token", token)
            .field("offline", offline)
            .field("certificates", certificates)
            .field("xet", xet)
            .field("pause", pause)
            .finish()
    }
}

/// An address without the user name and password that it may contain. It works on texts that are no address too, as they are
/// shown in messages.
pub(crate) fn without_credentials(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let mark = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{mark}{host}{path}")
}

fn setting(name: &str, problem: &str) -> Error {
    Error::Setting { name: name.into(), problem: problem.into() }
}

/// The user's home folder. A relative path is ignored: it would depend on the current folder.
fn user_folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = variable(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).map(PathBuf::from);
    folder.filter(|folder| folder.is_absolute())
}

/// Replaces a leading `~` by the user's home folder.
fn expand(path: &Path, variable: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    match (path.strip_prefix("~"), user_folder(variable)) {
        (Ok(rest), Some(user)) => user.join(rest),
        _ => path.to_path_buf(),
    }
}

/// The token in a file; `None` if there is no such file.
fn token_file(path: &Path) -> Result<Option<Token>> {
    let Ok(metadata) = path.metadata() else { return Ok(None) };
    let name = path.display().to_string();
    if !metadata.is_file() || metadata.len() > LONGEST_TOKEN {
        return Err(setting(&name, "is not a file with a token; create one with `hf auth login`, or set HF_TOKEN"));
    }
    Token::new(&std::fs::read_to_string(path).map_err(Error::io(path))?, &name)
}

/// A user's access token. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token in `text`, or `None` if it is blank. `source` names where the text comes from.
    ///
    /// # Errors
    /// [`Error::Setting`] if it cannot be the value of a header.
    pub fn new(text: &str, source: &str) -> Result<Option<Self>> {
        let token = text.trim();
        if !token.chars().all(|c| c.is_ascii_graphic()) {
            return Err(setting(source, "has no token: a token is one word of ASCII characters"));
        }
        Ok((!token.is_empty()).then(|| Self(token.into())))
    }

    /// The value of the header `Authorization`.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Settings::of(&find, false)
    }

    #[test]
    #[cfg(unix)]
    fn the_cache_is_where_other_tools_have_it() {
        for (variables, cache) in [
            (&[("HOME", "/u")][..], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/hf")], "/u/hf/hub"),
            (&[("HF_HOME", "/hf"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (&[("HF_HOME", "/hf"), ("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")], "/new"),
        ] {
            assert_eq!(settings(variables).unwrap().cache, Path::new(cache), "{variables:?}");
        }
        assert!(settings(&[]).unwrap_err().to_string().contains("HF_HOME"));
        assert!(settings(&[("HOME", "rel")]).unwrap_err().to_string().contains("HOME is no absolute path"));
        let cache = |variables| settings(variables).unwrap().cache;
        assert_eq!(cache(&[("HOME", "/u"), ("XDG_CACHE_HOME", "rel")]), Path::new("/u/.cache/huggingface/hub"));
    }

    #[test]
    fn passwords_of_the_endpoint_are_not_shown() {
        for (address, expected) in [
            ("http://user:PW@hub.example:81/a@b?c", "http://hub.example:81/a@b?c"),
            ("https://hub.example/x", "https://hub.example/x"),
            ("user:PW@hub.example", "hub.example"),
            ("http://u:P@W@hub.example", "http://hub.example"),
        ] {
            assert_eq!(without_credentials(address), expected);
        }
        let found = settings(&[("HF_HOME", "/hf"), ("HF_ENDPOINT", "http://u:PW@hub.example")]).unwrap();
        assert!(found.endpoint.contains("PW") && !format!("{found:?}").contains("PW"));
        let message = settings(&[("HF_HOME", "/hf"), ("HF_ENDPOINT", "u:PW@hub.example")]).unwrap_err().to_string();
        assert!(message.contains("`hub.example`"), "{message}");
    }

    #[test]
    fn the_token_comes_from_the_variable_or_a_file_and_is_not_without_credentials() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        std::fs::write(folder.path().join("token"), "hf_home\n").unwrap();
        std::fs::write(folder.path().join("other"), "hf_other").unwrap();
        let other = folder.path().join("other");
        let token = |more: &[(&str, &str)]| settings(&[&[("HF_HOME", home)], more].concat()).unwrap().token;
        let is = |text: &str| Token::new(text, "").unwrap();
        assert_eq!(token(&[]), is("hf_home"));
        assert_eq!(token(&[("HF_TOKEN_PATH", other.to_str().unwrap())]), is("hf_other"));
        assert_eq!(token(&[("HF_TOKEN", " hf_first ")]), is("hf_first"));
        assert_eq!(token(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert_eq!(token(&[("HF_HUB_OFFLINE", "1")]), None);
        let settings = settings(&[("HF_HOME", home), ("HF_TOKEN", "hf_secret")]).unwrap();
        assert!(!format!("{settings:?}").contains("secret"));
    }

    #[test]
    fn values_that_cannot_be_used_are_named() {
        for (name, value) in
            [("HF_TOKEN", "two words"), ("HF_ENDPOINT", "huggingface.co"), ("HF_ENDPOINT", "file:///x")]
        {
            let message = settings(&[("HF_HOME", "/hf"), (name, value)]).unwrap_err().to_string();
            assert!(message.starts_with(name) && !message.contains("two words"), "{message}");
        }
    }

    #[test]
    fn xet_is_on_unless_it_is_disabled_or_needs_other_certificates() {
        for (name, value, xet) in [
            ("HF_HUB_DISABLE_XET", "0", true),
            ("HF_HUB_DISABLE_XET", "1", false),
            ("SSL_CERT_FILE", "/company.pem", false),
        ] {
            assert_eq!(settings(&[("HF_HOME", "/hf"), (name, value)]).unwrap().xet, xet, "{name}={value}");
        }
    }

    #[test]
    fn offline_is_a_switch() {
        for (value, offline) in [("1", true), ("true", true), ("0", false), ("", false)] {
            assert_eq!(settings(&[("HF_HOME", "/hf"), ("HF_HUB_OFFLINE", value)]).unwrap().offline, offline);
        }
    }
}
