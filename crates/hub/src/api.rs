//! What the Hub says of a repository: its commit and its files, with sizes and checksums.

use serde::Deserialize;

use crate::cache::is_commit;
use crate::digest::Checksum;
use crate::error::{Error, Result};
use crate::event::Watch;
use crate::http::{Ask, Client, Head, Piece};
use crate::patience::{Patience, is_passing};
use crate::reference::{Reference, path_problem};
use crate::settings::Settings;

/// The longest answer that is read: the Hub's are some hundred bytes a file.
const LONGEST_ANSWER: usize = 64 << 20;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    pub(crate) name: String,
    pub(crate) size: Option<u64>,
    pub(crate) checksum: Option<Checksum>,
}

/// A revision of a repository.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct ModelInfo {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// A repository as the Hub has it.
pub(crate) struct Api<'a> {
    pub(crate) client: &'a Client,
    pub(crate) settings: &'a Settings,
    pub(crate) reference: &'a Reference,
}

impl Api<'_> {
    /// The repository's page, for messages.
    pub(crate) fn page(&self) -> String {
        self.client.address(&format!("/{}", self.reference.repository()))
    }

    /// The path of a file's content.
    pub(crate) fn content(&self, commit: &str, file: &str) -> String {
        format!("/{}/resolve/{commit}/{}", self.reference.repository(), escape(file, true))
    }

    /// The commit of the revision that is asked for, and its files.
    pub(crate) fn listing(&self, watch: &mut Watch<'_>) -> Result<Listing> {
        let revision = escape(self.reference.revision(), false);
        let path = format!("/api/models/{}/revision/{revision}?blobs=true", self.reference.repository());
        let address = self.client.address(&path);
        let (_, body) = self.answer(&Ask { path, own_only: true, ..Ask::default() }, None, watch)?;
        let info: ModelInfo = serde_json::from_slice(&body)
            .map_err(|error| Error::refused(&address, format!("this is no description of a repository: {error}")))?;
        let commit = info.sha.filter(|sha| is_commit(sha));
        let commit = commit.ok_or_else(|| Error::refused(&address, "the repository has no commit"))?;
        let file = |sibling: Sibling| {
            if let Some(problem) = path_problem(&sibling.rfilename) {
                return Err(Error::refused(&address, format!("the list of files {problem}")));
            }
            let large = sibling.lfs.as_ref().and_then(|lfs| Checksum::of(lfs.sha256.as_deref()?));
            // A pointer's own blob says nothing of the content.
            let small = || sibling.blob_id.as_deref().filter(|_| sibling.lfs.is_none()).and_then(Checksum::of);
            Ok(RemoteFile {
                size: sibling.lfs.as_ref().and_then(|lfs| lfs.size).or(sibling.size),
                checksum: large.or_else(small),
                name: sibling.rfilename,
            })
        };
        let files = info.siblings.into_iter().map(file).collect::<Result<_>>()?;
        Ok(Listing { commit, files })
    }

    /// Size and checksum of a file whose listing had none, as mirrors have them.
    pub(crate) fn probe(&self, commit: &str, file: &mut RemoteFile, watch: &mut Watch<'_>) -> Result<()> {
        let path = self.content(commit, &file.name);
        let address = self.client.address(&path);
        let (head, _) = self.answer(&Ask { path, head_only: true, ..Ask::default() }, Some(&file.name), watch)?;
        self.check(commit, file, &head, &address)?;
        file.size = file.size.or(head.size);
        file.checksum = file.checksum.take().or(head.checksum);
        if file.size.is_none() || file.checksum.is_none() {
            return Err(Error::refused(
                &address,
                "there is neither a listing nor a header with the file's checksum and size",
            ));
        }
        Ok(())
    }

    /// Refuses an answer about another file than `file` of `commit`.
    pub(crate) fn check(&self, commit: &str, file: &RemoteFile, head: &Head, address: &str) -> Result<()> {
        let differ = |what: &str, found: &dyn std::fmt::Display, expected: &dyn std::fmt::Display| {
            Err(Error::refused(address, format!("the server says {what} {found}, and elsewhere {expected}")))
        };
        if let Some(found) = head.commit.as_ref().filter(|found| *found != commit) {
            return differ("commit", &crate::http::plain(found), &commit);
        }
        if let (Some(found), Some(expected)) = (head.size, file.size)
            && found != expected
        {
            return differ("size", &found, &expected);
        }
        match (&head.checksum, &file.checksum) {
            (Some(found), Some(expected)) if found != expected => differ("checksum", found, expected),
            _ => Ok(()),
        }
    }

    /// A whole short answer.
    fn answer(&self, ask: &Ask, file: Option<&str>, watch: &mut Watch<'_>) -> Result<(Head, Vec<u8>)> {
        let address = self.client.address(&ask.path);
        let name = file.map_or_else(|| self.reference.repository(), String::from);
        let mut patience = Patience::new(self.settings.pause);
        loop {
            let pieces = self.client.ask(ask.clone())?;
            let (mut head, mut body) = (Head::default(), Vec::new());
            let (problem, asked) = loop {
                match watch.next(&pieces)? {
                    Piece::Head(found) => head = *found,
                    Piece::Bytes(bytes) if body.len() + bytes.len() <= LONGEST_ANSWER => body.extend(bytes),
                    Piece::Bytes(_) => return Err(Error::refused(&address, "the answer does not end")),
                    Piece::End if is_passing(head.status) => {
                        break (format!("the server says {}", head.status), head.retry_after);
                    }
                    Piece::End if head.length.is_some_and(|length| !ask.head_only && length != body.len() as u64) => {
                        break ("the connection was cut".into(), None);
                    }
                    Piece::End if head.status == 200 => return Ok((head, body)),
                    Piece::End => return Err(self.denied(&head, &address, file)),
                    Piece::Failed(problem) => break (problem, None),
                    Piece::Refused(problem) => return Err(Error::refused(&address, problem)),
                }
            };
            if !patience.wait(&name, &problem, asked, watch)? {
                return Err(match is_passing(head.status) {
                    true => self.denied(&head, &address, file),
                    false => Error::Network { address, problem },
                });
            }
        }
    }

    /// What an answer that is no file means.
    pub(crate) fn denied(&self, head: &Head, address: &str, file: Option<&str>) -> Error {
        let (what, page, token) = (self.reference.repository(), self.page(), self.client.has_token());
        match (head.status, head.code.as_str()) {
            (_, "GatedRepo") => Error::Gated { what, page, token },
            (_, "RevisionNotFound") => Error::NoRevision { what, revision: self.reference.revision().into(), page },
            (404, "EntryNotFound") => {
                Error::NoFile { what, file: file.unwrap_or_default().into(), nearest: Vec::new() }
            }
            (401, _) | (_, "RepoNotFound") => Error::Hidden { what, page, token },
            (403, _) => Error::Gated { what, page, token },
            (404, _) if file.is_none() => Error::Hidden { what, page, token },
            (status, _) => {
                let advice = match status {
                    429 => "; too many requests, try again in some minutes, or with a token in HF_TOKEN",
                    500..=599 => "; try again later, or another server with HF_ENDPOINT",
                    _ => "",
                };
                Error::Status { address: address.into(), status, message: head.message.clone(), advice }
            }
        }
    }
}

/// Escapes what is not plain in a path.
fn escape(text: &str, slashes: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => escaped.push(char::from(byte)),
            b'/' if slashes => escaped.push('/'),
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_as_the_hub_wants_them() {
        assert_eq!(escape("a b/ü?.txt", true), "a%20b/%C3%BC%3F.txt");
        assert_eq!(escape("refs/pr/1", false), "refs%2Fpr%2F1");
    }
}
