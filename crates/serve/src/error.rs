//! Errors: those that stop the server, and those that are answers.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::StatusCode;

use crate::jobs::cut_text;
use crate::scheduler::Refusal;

/// Why the server does not start, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model, a file or a device.
    #[error(transparent)]
    Engine(#[from] kiln_engine::Error),
    /// The address cannot be listened on.
    #[error("`listen` {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// An option of the server.
    #[error("`{name}` is {found}, expected {expected}")]
    Value {
        /// The option.
        name: &'static str,
        /// Its value.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// The system refuses a thread or a folder.
    #[error("{what}: {source}")]
    System {
        /// The requested resource.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl From<kiln_models::Error> for Error {
    fn from(error: kiln_models::Error) -> Self {
        Self::Engine(error.into())
    }
}

impl Error {
    /// Whether the caller is at fault, and not a file, a device or the run.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_usage(),
            Self::Value { .. } => true,
            Self::Listen { .. } | Self::System { .. } => false,
        }
    }
}

/// Why a request is not answered as asked. Each API writes it in its own form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) kind: RefusedKind,
    pub(crate) message: String,
    /// The field at fault.
    pub(crate) param: Option<String>,
    /// When to come back.
    pub(crate) retry_after: Option<Duration>,
}

/// The kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusedKind {
    /// The request cannot be met by anybody.
    Invalid,
    /// There is no such thing.
    NotFound,
    /// There is no key, or a wrong one.
    Unauthorized,
    /// The page of another origin.
    Forbidden,
    /// The body is too large.
    TooLarge,
    /// The body did not come in time.
    TooSlow,
    /// A file that cannot be read.
    Unprocessable,
    /// The queue is full.
    QueueFull,
    /// There is no memory for the request at the moment.
    Busy,
    /// The client has not read other answers.
    Unread,
    /// The server ends.
    Stopping,
    /// The run failed.
    Internal,
    /// The job was canceled before it was done.
    Canceled,
    /// The job's time was over before it was done.
    Expired,
}

impl RefusedKind {
    /// The status of the answer, and the name of the kind.
    pub(crate) fn status(self) -> (StatusCode, &'static str) {
        match self {
            Self::Invalid => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, "too_slow"),
            Self::Unprocessable => (StatusCode::UNPROCESSABLE_ENTITY, "unprocessable"),
            Self::QueueFull => (StatusCode::TOO_MANY_REQUESTS, "queue_full"),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            Self::Unread => (StatusCode::TOO_MANY_REQUESTS, "unread_answers"),
            Self::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            Self::Canceled => (StatusCode::CONFLICT, "canceled"),
            Self::Expired => (StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"),
        }
    }
}

/// The longest message in bytes. A client's values are a part of some.
const LONGEST_MESSAGE: usize = 8 << 10;
/// The longest value in a message in bytes.
const LONGEST_VALUE: usize = 256;

impl Refused {
    pub(crate) fn new(kind: RefusedKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        cut_text(&mut message, LONGEST_MESSAGE);
        Self { kind, message, param: None, retry_after: None }
    }

    /// A value that cannot be.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(RefusedKind::Invalid, message)
    }

    /// A refusal of the field `param`.
    pub(crate) fn value(param: &str, found: impl std::fmt::Display, expected: impl std::fmt::Display) -> Self {
        let mut found = found.to_string();
        cut_text(&mut found, LONGEST_VALUE);
        Self::invalid(format!("`{param}` is {found}, expected {expected}")).at(param)
    }

    /// An image that cannot be read.
    pub(crate) fn unread(error: kiln_media::Error) -> Self {
        Self::new(RefusedKind::Unprocessable, error.to_string())
    }

    /// With the field at fault.
    pub(crate) fn at(self, param: &str) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    /// There is no such thing.
    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Self::new(RefusedKind::NotFound, what)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full(after) => Self {
                retry_after: Some(after),
                ..Self::new(RefusedKind::QueueFull, "the queue is full; try again later")
            },
            Refusal::Stopping => Self::new(RefusedKind::Stopping, "the server is stopping"),
        }
    }
}

impl From<kiln_request::Error> for Refused {
    fn from(error: kiln_request::Error) -> Self {
        kiln_engine::Error::from(error).into()
    }
}

/// An error of the engine while a request is checked. Paths of the server stay out of the answer.
impl From<kiln_engine::Error> for Refused {
    fn from(error: kiln_engine::Error) -> Self {
        use kiln_engine::Error as Engine;
        let param = match &error {
            Engine::Request(kiln_request::Error::Value { name, .. }) => Some(name.to_string()),
            _ => None,
        };
        let kind = match &error {
            Engine::Media(_) => RefusedKind::Unprocessable,
            error if error.is_usage() => RefusedKind::Invalid,
            _ => RefusedKind::Internal,
        };
        Self { param, ..Self::new(kind, error.to_string()) }
    }
}
