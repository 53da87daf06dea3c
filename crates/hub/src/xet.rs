//! Transfers from the Xet storage: the Hub's content-addressed storage of large files, which sends a file in chunks over
//! several connections at once.
//!
//! The crate `hf-xet`, with which `hf-hub` does its transfers, finds and decodes the chunks and puts them in order. It gets the
//! address of the storage and a token for it, both checked before, and never the user's token.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use ::xet::xet_session::{
    XetConfig, XetDownloadStream, XetDownloadStreamGroup, XetFileInfo, XetSession, XetSessionBuilder,
};
use parking_lot::Mutex;

use crate::api::XetAccess;
use crate::error::{Error, Result};
use crate::http::{QUEUE, Reply, too_slow};
use crate::min_speed::MinSpeed;

/// Settings that differ from the defaults of `hf-xet`.
const CONFIG: [(&str, &str); 9] = [
    // Nothing is reported about transfers.
    ("telemetry.enabled", "false"),
    // The limits of plain HTTP requests.
    ("client.connect_timeout", "15s"),
    ("client.read_timeout", "30s"),
    // Repeating is decided by the retry policy, which then uses plain HTTP.
    ("client.retry_max_attempts", "2"),
    ("client.retry_base_delay", "500ms"),
    // Buffers of a sixteenth to a quarter of the memory are the default; models are often downloaded where memory is short.
    ("reconstruction.min_reconstruction_fetch_size", "64mb"),
    ("reconstruction.download_buffer_size", "128mb"),
    ("reconstruction.download_buffer_perfile_size", "16mb"),
    ("reconstruction.download_buffer_limit", "256mb"),
];

/// The client of the Xet storage. Its threads start with the first transfer and end with this value.
pub(crate) struct Xet {
    enabled: bool,
    session: Mutex<Option<XetSession>>,
}

/// A running transfer. Dropping it ends the transfer.
pub(crate) struct XetTransfer(XetDownloadStreamGroup);

impl Drop for XetTransfer {
    fn drop(&mut self) {
        let _ = self.0.abort(); // it may have ended
    }
}

impl Xet {
    /// Starts nothing.
    pub(crate) fn new(enabled: bool) -> Self {
        Self { enabled, session: Mutex::new(None) }
    }

    /// Whether files may come from the Xet storage.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Starts the transfer of a range of the file `hash`, which ends at the file's end. Bytes arrive in order.
    ///
    /// # Errors
    /// The first value is an error if the transfer cannot be started; [`Error::Thread`] if a thread cannot.
    pub(crate) fn start(
        &self,
        access: &XetAccess,
        hash: &str,
        range: Range<u64>,
    ) -> Result<Result<(XetTransfer, Receiver<Reply>), String>> {
        let opened = self.open(access, hash, range).map_err(|error| error.to_string());
        let (group, stream) = match opened {
            Ok(opened) => opened,
            Err(problem) => return Ok(Err(problem)),
        };
        let transfer = XetTransfer(group);
        let (sender, receiver) = sync_channel(QUEUE);
        let run = move || {
            let last = send_stream(stream, &sender);
            let _ = sender.send(last); // the receiver may be gone
        };
        std::thread::Builder::new().name("kiln-xet".into()).spawn(run).map_err(Error::Thread)?;
        Ok(Ok((transfer, receiver)))
    }

    fn open(
        &self,
        access: &XetAccess,
        hash: &str,
        range: Range<u64>,
    ) -> Result<(XetDownloadStreamGroup, XetDownloadStream), Box<dyn std::error::Error + Send + Sync>> {
        let group = self
            .session()?
            .new_download_stream_group()?
            .with_endpoint(access.server.as_str())
            .with_token_info(access.token.as_str(), access.expires)
            .build_blocking()?;
        let file = XetFileInfo::new(hash.into(), range.end);
        let stream = group.download_stream_blocking(file, Some(range))?;
        Ok((group, stream))
    }

    /// The session, which is made at the first use.
    fn session(&self) -> Result<XetSession, Box<dyn std::error::Error + Send + Sync>> {
        let mut session = self.session.lock();
        if let Some(session) = &*session {
            return Ok(session.clone());
        }
        // reqwest takes the cryptography that the process has chosen. If it has chosen none, it is that of all other requests.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let made = XetSessionBuilder::new_with_config(config()?).build()?;
        Ok(session.insert(made).clone())
    }
}

fn config() -> Result<XetConfig, Box<dyn std::error::Error + Send + Sync>> {
    let mut config = XetConfig::new();
    for (name, value) in CONFIG {
        config = config.with_config(name, value)?;
    }
    Ok(config)
}

/// Sends the bytes of a stream; returns the last reply.
fn send_stream(mut stream: XetDownloadStream, sender: &SyncSender<Reply>) -> Reply {
    let mut speed = MinSpeed::default();
    loop {
        let start = Instant::now();
        match stream.blocking_next() {
            Ok(None) => return Reply::End,
            Ok(Some(bytes)) => {
                if speed.is_too_slow(bytes.len(), start.elapsed()) {
                    return too_slow();
                }
                if sender.send(Reply::Bytes(bytes.into())).is_err() {
                    return Reply::End;
                }
            }
            Err(error) => return Reply::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_report_nothing_and_use_little_memory() {
        let config = config().unwrap();
        for (name, value) in [
            ("telemetry.enabled", "false"),
            ("client.read_timeout", "30s"),
            ("reconstruction.download_buffer_limit", "256MB"),
        ] {
            let found = config.get(name).unwrap();
            assert_eq!(found, value, "{name}");
        }
    }
}
