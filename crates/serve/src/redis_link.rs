//! A connection to Redis whose calls have a limit of time and of bytes as a whole. The protocol is the `redis` crate's.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionAddr, ConnectionInfo, Parser, RedisError, Value, cmd};

/// Why a call has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The connection.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An error reply of Redis.
    #[error("{0}")]
    Redis(RedisError),
    /// The time of the call is over.
    #[error("no answer within {} ms", .0.as_millis())]
    TooSlow(Duration),
    /// The answer has more bytes than this.
    #[error("an answer of more than {0} bytes")]
    TooLarge(usize),
    /// An answer that no such call has.
    #[error("an unexpected answer")]
    Unexpected,
}

type Result<T> = std::result::Result<T, Failure>;

/// A connection.
pub(crate) struct Link {
    stream: Stream,
    parser: Parser,
}

enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Link {
    /// Connects, gives the password, and chooses the database, until `until`.
    ///
    /// # Errors
    /// [`Failure`] if there is no such server, or it refuses.
    pub(crate) fn open(info: &ConnectionInfo, until: Instant) -> Result<Self> {
        /// The most bytes of an answer to a password.
        const MOST: usize = 4096;
        let stream = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Stream::Tcp(connected(host, *port, until)?),
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            _ => return Err(Failure::Unexpected),
        };
        let mut link = Self { stream, parser: Parser::new() };
        let settings = info.redis_settings();
        if let Some(password) = settings.password() {
            let mut auth = cmd("AUTH");
            if let Some(user) = settings.username() {
                auth.arg(user);
            }
            link.ordered(auth.arg(password), MOST, until)?;
        }
        if settings.db() != 0 {
            link.ordered(cmd("SELECT").arg(settings.db()), MOST, until)?;
        }
        Ok(link)
    }

    /// The value of a key in an answer of at most `most` bytes.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn get(&mut self, key: &str, most: usize, until: Instant) -> Result<Option<Vec<u8>>> {
        match self.call(cmd("GET").arg(key), most, until)? {
            Value::BulkString(bytes) => Ok(Some(bytes)),
            Value::Nil => Ok(None),
            _ => Err(Failure::Unexpected),
        }
    }

    /// Puts a value in for so many seconds.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn put(&mut self, key: &str, value: &[u8], seconds: u64, most: usize, until: Instant) -> Result<()> {
        self.ordered(cmd("SETEX").arg(key).arg(seconds).arg(value), most, until)
    }

    /// A command whose answer is `OK`.
    fn ordered(&mut self, command: &Cmd, most: usize, until: Instant) -> Result<()> {
        match self.call(command, most, until)? {
            Value::Okay => Ok(()),
            _ => Err(Failure::Unexpected),
        }
    }

    /// The answer to a command.
    fn call(&mut self, command: &Cmd, most: usize, until: Instant) -> Result<Value> {
        let start = Instant::now();
        let mut call = Call { stream: &mut self.stream, until, left: most, has_too_much: false };
        let sent = call.write_all(&command.get_packed_command());
        let answered = sent.map_err(RedisError::from).and_then(|()| self.parser.parse_value(&mut call));
        let has_too_much = call.has_too_much;
        match answered {
            _ if has_too_much => Err(Failure::TooLarge(most)),
            Ok(Value::ServerError(error)) => Err(Failure::Redis(error.into())),
            Ok(value) => Ok(value),
            Err(_) if Instant::now() >= until => Err(Failure::TooSlow(until.saturating_duration_since(start))),
            Err(error) => Err(Failure::Redis(error)),
        }
    }
}

/// A connection to the first address of the host that answers.
fn connected(host: &str, port: u16, until: Instant) -> Result<TcpStream> {
    let mut failure = io::Error::from(ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure.into())
}

/// The time that is left until `until`.
///
/// # Errors
/// [`ErrorKind::TimedOut`] if none is left.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The stream during one call.
struct Call<'a> {
    stream: &'a mut Stream,
    until: Instant,
    /// Bytes that may still come.
    left: usize,
    has_too_much: bool,
}

impl Read for Call<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let time = Some(left(self.until)?);
        let most = buffer.len().min(self.left);
        if most == 0 && !buffer.is_empty() {
            self.has_too_much = true;
            return Err(ErrorKind::FileTooLarge.into());
        }
        let buffer = buffer.get_mut(..most).unwrap_or_default();
        let count = match self.stream {
            Stream::Tcp(stream) => stream.set_read_timeout(time).and_then(|()| stream.read(buffer)),
            #[cfg(unix)]
            Stream::Unix(stream) => stream.set_read_timeout(time).and_then(|()| stream.read(buffer)),
        }?;
        self.left -= count;
        Ok(count)
    }
}

impl Write for Call<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let time = Some(left(self.until)?);
        match self.stream {
            Stream::Tcp(stream) => stream.set_write_timeout(time).and_then(|()| stream.write(bytes)),
            #[cfg(unix)]
            Stream::Unix(stream) => stream.set_write_timeout(time).and_then(|()| stream.write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
