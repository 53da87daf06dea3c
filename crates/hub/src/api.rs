//! The Hub's API: the commit and the files of a repository, with sizes and checksums, and tokens for the Xet storage.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::address;
use crate::cache::is_commit;
use crate::digest::Checksum;
use crate::error::{Error, Result};
use crate::event::Monitor;
use crate::http::{Client, Head, Reply, Request};
use crate::reference::{Reference, path_problem};
use crate::retry::{RetryPolicy, is_transient};
use crate::settings::Settings;

/// The most bytes of an answer that are read. The Hub's listings have a few hundred bytes for each file.
const MAX_ANSWER: usize = 64 << 20;
/// Everything but the unreserved characters of RFC 3986, as Python's `urllib.parse.quote`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

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

/// The answer with a token for the Xet storage.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct XetToken {
    cas_url: String,
    access_token: String,
    exp: u64,
}

/// Access to the Xet storage of a repository.
#[cfg_attr(not(feature = "xet"), allow(dead_code))]
pub(crate) struct XetAccess {
    /// The address of the storage (content-addressed store, "CAS").
    pub(crate) server: String,
    /// A token for this storage. It is not the user's.
    pub(crate) token: String,
    /// When it expires, in seconds since 1970.
    pub(crate) expires: u64,
}

/// The API for one repository.
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

    /// The path from which a file is downloaded.
    pub(crate) fn content(&self, commit: &str, file: &str) -> String {
        format!("/{}/resolve/{commit}/{}", self.reference.repository(), escape_path(file))
    }

    /// Asks for the commit of the revision, and its files.
    pub(crate) fn listing(&self, monitor: &mut Monitor<'_>) -> Result<Listing> {
        let revision = escape(self.reference.revision());
        let path = format!("/api/models/{}/revision/{revision}?blobs=true", self.reference.repository());
        let address = self.client.address(&path);
        let (_, body) = self.fetch(&Request { path, own_only: true, ..Request::default() }, None, monitor)?;
        let info: ModelInfo = serde_json::from_slice(&body)
            .map_err(|error| Error::refused(&address, format!("this is no description of a repository: {error}")))?;
        let commit = info.sha.filter(|sha| is_commit(sha));
        let commit = commit.ok_or_else(|| Error::refused(&address, "the repository has no commit"))?;
        let file = |sibling: Sibling| {
            if let Some(problem) = path_problem(&sibling.rfilename) {
                return Err(Error::refused(&address, format!("the list of files {problem}")));
            }
            let large = sibling.lfs.as_ref().and_then(|lfs| Checksum::parse(lfs.sha256.as_deref()?));
            // For a file in LFS the blob is the pointer, not the content.
            let small = || sibling.blob_id.as_deref().filter(|_| sibling.lfs.is_none()).and_then(Checksum::parse);
            Ok(RemoteFile {
                size: sibling.lfs.as_ref().and_then(|lfs| lfs.size).or(sibling.size),
                checksum: large.or_else(small),
                name: sibling.rfilename,
            })
        };
        let files = info.siblings.into_iter().map(file).collect::<Result<_>>()?;
        Ok(Listing { commit, files })
    }

    /// Asks for size and checksum of a file if the listing had none. Mirrors send them in headers only.
    pub(crate) fn probe(&self, commit: &str, file: &mut RemoteFile, monitor: &mut Monitor<'_>) -> Result<()> {
        let path = self.content(commit, &file.name);
        let address = self.client.address(&path);
        let (head, _) =
            self.fetch(&Request { path, head_only: true, ..Request::default() }, Some(&file.name), monitor)?;
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

    /// Asks for access to the Xet storage of a commit.
    pub(crate) fn xet_access(&self, commit: &str, monitor: &mut Monitor<'_>) -> Result<XetAccess> {
        let path = format!("/api/models/{}/xet-read-token/{commit}", self.reference.repository());
        let address = self.client.address(&path);
        let (_, body) = self.fetch(&Request { path, own_only: true, ..Request::default() }, None, monitor)?;
        let answer: XetToken = serde_json::from_slice(&body)
            .map_err(|error| Error::refused(&address, format!("this is no token for the Xet storage: {error}")))?;
        // The same rule as for redirects: `http` only if the endpoint itself is reached by it.
        let server = address::redirect(self.client.origin(), &answer.cas_url)
            .map_err(|problem| Error::refused(&address, format!("the address of the Xet storage: {problem}")))?;
        let server = server.as_str().trim_end_matches('/').to_string();
        Ok(XetAccess { server, token: answer.access_token, expires: answer.exp })
    }

    /// Refuses an answer that describes another file than `file` of `commit`.
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

    /// Fetches a short answer as a whole, with retries.
    fn fetch(&self, request: &Request, file: Option<&str>, monitor: &mut Monitor<'_>) -> Result<(Head, Vec<u8>)> {
        let address = self.client.address(&request.path);
        let name = file.map_or_else(|| self.reference.repository(), String::from);
        let mut retry = RetryPolicy::new(self.settings.pause);
        loop {
            let replies = self.client.send(request.clone())?;
            let (mut head, mut body) = (Head::default(), Vec::new());
            let (problem, retry_after) = loop {
                match monitor.next(&replies)? {
                    Reply::Head(found) => head = *found,
                    Reply::Bytes(bytes) if body.len() + bytes.len() <= MAX_ANSWER => body.extend(bytes),
                    Reply::Bytes(_) => return Err(Error::refused(&address, "the answer does not end")),
                    Reply::End if is_transient(head.status) => {
                        break (format!("the server says {}", head.status), head.retry_after);
                    }
                    Reply::End
                        if head.length.is_some_and(|length| !request.head_only && length != body.len() as u64) =>
                    {
                        break ("the connection was cut".into(), None);
                    }
                    Reply::End if head.status == 200 => return Ok((head, body)),
                    Reply::End => return Err(self.status_error(&head, &address, file)),
                    Reply::Failed(problem) => break (problem, None),
                    // Without a network another attempt fails in the same way.
                    Reply::Offline(problem) => {
                        let (address, cache) = (self.client.address(""), self.settings.cache.clone());
                        return Err(Error::Offline { address, problem, cache });
                    }
                    Reply::Refused(problem) => return Err(Error::refused(&address, problem)),
                }
            };
            if !retry.wait(&name, &problem, retry_after, monitor)? {
                return Err(match is_transient(head.status) {
                    true => self.status_error(&head, &address, file),
                    false => Error::Network { address, problem, kept: monitor.done > 0 },
                });
            }
        }
    }

    /// The error for an answer with a status that is no success.
    pub(crate) fn status_error(&self, head: &Head, address: &str, file: Option<&str>) -> Error {
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

/// Escapes a text as one segment of a path.
fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Escapes the segments of a path.
fn escape_path(path: &str) -> String {
    path.split('/').map(escape).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_as_the_hub_expects_them() {
        assert_eq!(escape_path("a b/ü?.txt"), "a%20b/%C3%BC%3F.txt");
        assert_eq!(escape("refs/pr/1"), "refs%2Fpr%2F1");
    }
}
