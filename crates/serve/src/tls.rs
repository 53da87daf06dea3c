//! TLS by rustls: the certificate and the key of the server.

use std::io::Error as IoError;
use std::path::Path;
use std::sync::Arc;

use kiln_files::read_small;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::error::{Error, Result};
use crate::options::Tls;

/// The most bytes of a file with a certificate or a key.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// The acceptor of encrypted connections.
///
/// # Errors
/// [`Error::Engine`] for files that cannot be read, [`Error::Value`] for those that are no certificate and key in PEM, or do not
/// belong together.
pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor> {
    let value = |name: &'static str, path: &Path, expected: String| Error::Value {
        name,
        found: path.display().to_string(),
        expected,
    };
    let unread = |name: &'static str, path: &Path, what: &str, error: PemError| match error {
        PemError::Io(error) => unreadable(path, error),
        error => value(name, path, format!("{what} in PEM ({error})")),
    };
    let of_certificate = |error| unread("tls_cert", &tls.certificate, "a certificate", error);
    // A FIFO or a device would be read forever.
    let read = |path: &Path| read_small(path, MAX_PEM_BYTES).map_err(|error| unreadable(path, error));
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(&tls.certificate)?)
        .collect::<std::result::Result<_, _>>()
        .map_err(of_certificate)?;
    if certificates.is_empty() {
        return Err(of_certificate(PemError::NoItemsFound));
    }
    let key = PrivateKeyDer::from_pem_slice(&read(&tls.key)?)
        .map_err(|error| unread("tls_key", &tls.key, "a private key", error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unfit = |error: rustls::Error| {
        value("tls_key", &tls.key, format!("the key of {} ({error})", tls.certificate.display()))
    };
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unfit)?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(unfit)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn unreadable(path: &Path, error: IoError) -> Error {
    Error::Engine(kiln_files::read_error(path)(error).into())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn files_that_are_none_are_named() {
        let file = |name: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let message = |certificate: &str, key: &str| {
            let tls = Tls { certificate: file(certificate), key: file(key) };
            acceptor(&tls).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(message("certificate.pem", "key.pem"), "");
        assert!(message("none.pem", "key.pem").contains("none.pem"));
        assert!(message("key.pem", "key.pem").starts_with("`tls_cert`"));
        let special = |certificate: &str, key: &str| {
            let tls = Tls { certificate: certificate.into(), key: key.into() };
            acceptor(&tls).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(special("/dev/zero", "/dev/zero").contains("is a device, expected a regular file"));
        let certificate = file("certificate.pem");
        assert!(special(certificate.to_str().unwrap(), "/dev/zero").contains("/dev/zero: is a device"));
        assert!(message("certificate.pem", "certificate.pem").starts_with("`tls_key`"));
    }
}
