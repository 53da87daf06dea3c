//! Requests to the place of releases.

use std::io::{Read, Write};
use std::time::Duration;

use kiln_files::Sha256;
use ureq::Agent;
use url::{Host, Url};

use crate::error::{Error, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest time in which a server may send nothing.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const BUFFER: usize = 256 << 10;

/// A client for addresses below one that a receipt names.
pub(crate) struct Client {
    agent: Agent,
    source: String,
}

impl Client {
    /// Makes no connection. Only `https` is used, except for a server on this machine.
    ///
    /// # Errors
    /// A sentence for an address that cannot be used.
    pub(crate) fn new(source: &str) -> std::result::Result<Self, String> {
        let url = Url::parse(source).map_err(|_| format!("its source {source:?} is no address"))?;
        let is_here = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        if url.scheme() != "https" && !(is_here && url.scheme() == "http") {
            return Err(format!("its source {source:?} is no https address"));
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .https_only(!is_here)
            .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(READ_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT));
        if is_here {
            config = config.proxy(None); // a proxy would look for the server on its own machine
        }
        Ok(Self { agent: config.build().new_agent(), source: source.trim_end_matches('/').into() })
    }

    /// The address of a file of the newest release.
    pub(crate) fn address(&self, file: &str) -> String {
        format!("{}/latest/download/{file}", self.source)
    }

    /// Writes at most `most` bytes of an address to `to`, and returns their SHA-256.
    ///
    /// # Errors
    /// [`Error::Request`], also for a server that sends fewer bytes than it said, [`Error::Release`] for too many.
    pub(crate) fn fetch(
        &self,
        address: &str,
        most: u64,
        to: &mut dyn Write,
        heard: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<String> {
        let failed = |problem: String| Error::Request { address: address.into(), problem };
        let response = self.agent.get(address).call().map_err(|error| failed(error.to_string()))?;
        match response.status().as_u16() {
            200 => {}
            404 => return Err(failed("there is no such file; is there a release?".into())),
            status => return Err(failed(format!("the server says {status}"))),
        }
        let length = response.headers().get("content-length").and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
        let mut reader = response.into_body().into_with_config().limit(u64::MAX).reader();
        let (mut buffer, mut have, mut sum) = (vec![0; BUFFER], 0, Sha256::default());
        loop {
            let count = reader.read(&mut buffer).map_err(|error| failed(format!("the connection was cut: {error}")))?;
            if count == 0 {
                break;
            }
            have += count as u64;
            if have > most {
                return Err(Error::Release { address: address.into(), problem: format!("has more than {most} bytes") });
            }
            sum.update(&buffer[..count]);
            to.write_all(&buffer[..count])
                .map_err(|error| failed(format!("the download cannot be written: {error}")))?;
            heard(have, length);
        }
        match length.filter(|length| *length != have) {
            Some(length) => Err(failed(format!("the connection was cut after {have} of {length} bytes"))),
            None => Ok(sum.finish()),
        }
    }
}
