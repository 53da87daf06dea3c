//! Where the Hub and the cache are, and who asks: the environment variables of Hugging Face's own tools.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

const ENDPOINT: &str = "https://huggingface.co";
/// The longest token file that is read.
const LONGEST_TOKEN: u64 = 4096;

/// What a [`Hub`](crate::Hub) needs to know. `Debug` shows neither the token nor a password in the endpoint.
#[derive(Clone)]
pub struct Settings {
    /// The Hub's address, with `https://` or `http://` and without a slash at its end (`HF_ENDPOINT`).
    pub endpoint: String,
    /// The cache's folder, which other tools share (`HF_HUB_CACHE`, else `HF_HOME/hub`, else
    /// `~/.cache/huggingface/hub`).
    pub cache: PathBuf,
    /// Who asks (`HF_TOKEN`, else the file `HF_TOKEN_PATH`, else `HF_HOME/token`). It goes to the endpoint alone, never
    /// to servers that the endpoint sends us to.
    pub token: Option<Token>,
    /// Nobody is asked, the cache alone is used (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// A file with certificates in the place of the common authorities' (`SSL_CERT_FILE`, else `REQUESTS_CA_BUNDLE`).
    pub certificates: Option<PathBuf>,
    /// The pause before something is tried again for the first time; later ones are longer.
    pub pause: Duration,
}

impl Settings {
    /// What the environment says; `offline` is more than it.
    ///
    /// # Errors
    /// [`Error::Setting`] for values that cannot be used, [`Error::Io`] for a token file that cannot be read.
    pub fn from_env(offline: bool) -> Result<Self> {
        Self::of(&|name| std::env::var_os(name).filter(|value| !value.is_empty()), offline)
    }

    fn of(variable: &dyn Fn(&str) -> Option<OsString>, offline: bool) -> Result<Self> {
        let text = |name: &str| -> Result<Option<String>> {
            let not_text = |_| setting(name, "is no text");
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
                Err(_) => None, // a machine without a home has no token in it
            },
        };
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| ENDPOINT.into());
        let endpoint = endpoint.trim().trim_end_matches('/').to_string();
        if !["https://", "http://"].iter().any(|scheme| endpoint.len() > scheme.len() && endpoint.starts_with(scheme)) {
            let problem = format!("is `{}`, expected an address such as {ENDPOINT}", shown(&endpoint));
            return Err(setting("HF_ENDPOINT", &problem));
        }
        let certificates = path("SSL_CERT_FILE").or_else(|| path("REQUESTS_CA_BUNDLE"));
        Ok(Self { endpoint, cache, token, offline, certificates, pause: Duration::from_secs(1) })
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, cache, token, offline, certificates, pause } = self;
        f.debug_struct("Settings")
            .field("endpoint", &shown(endpoint))
            .field("cache", cache)
            .field("token", token)
            .field("offline", offline)
            .field("certificates", certificates)
            .field("pause", pause)
            .finish()
    }
}

/// An address without the name and the password that it may have.
pub(crate) fn shown(address: &str) -> String {
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

/// The user's folder. A relative one would be another folder wherever a program starts.
fn user_folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = variable(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).map(PathBuf::from);
    folder.filter(|folder| folder.is_absolute())
}

/// A path with the user's folder for a `~` at its begin.
fn expand(path: &Path, variable: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    match (path.strip_prefix("~"), user_folder(variable)) {
        (Ok(rest), Some(user)) => user.join(rest),
        _ => path.to_path_buf(),
    }
}

/// The token in a file, which need not be there.
fn token_file(path: &Path) -> Result<Option<Token>> {
    let Ok(metadata) = path.metadata() else { return Ok(None) };
    let name = path.display().to_string();
    if !metadata.is_file() || metadata.len() > LONGEST_TOKEN {
        return Err(setting(&name, "is no file with a token; make a new one with `hf auth login`, or set HF_TOKEN"));
    }
    Token::new(&std::fs::read_to_string(path).map_err(Error::io(path))?, &name)
}

/// A user's secret. It is not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token in `text`, or none where there are spaces alone; `source` is who said it.
    ///
    /// # Errors
    /// [`Error::Setting`] where it could not be the value of a header.
    pub fn new(text: &str, source: &str) -> Result<Option<Self>> {
        let token = text.trim();
        if !token.chars().all(|c| c.is_ascii_graphic()) {
            return Err(setting(source, "has no token: tokens are one word of plain letters"));
        }
        Ok((!token.is_empty()).then(|| Self(token.into())))
    }

    /// The header's value.
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
            assert_eq!(shown(address), expected);
        }
        let found = settings(&[("HF_HOME", "/hf"), ("HF_ENDPOINT", "http://u:PW@hub.example")]).unwrap();
        assert!(found.endpoint.contains("PW") && !format!("{found:?}").contains("PW"));
        let message = settings(&[("HF_HOME", "/hf"), ("HF_ENDPOINT", "u:PW@hub.example")]).unwrap_err().to_string();
        assert!(message.contains("`hub.example`"), "{message}");
    }

    #[test]
    fn the_token_comes_from_the_variable_or_a_file_and_is_not_shown() {
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
    fn offline_is_a_switch() {
        for (value, offline) in [("1", true), ("true", true), ("0", false), ("", false)] {
            assert_eq!(settings(&[("HF_HOME", "/hf"), ("HF_HUB_OFFLINE", value)]).unwrap().offline, offline);
        }
    }
}
