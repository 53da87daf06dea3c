//! Encoded texts in Redis or Valkey, which servers share. What goes wrong there costs time, and never a request.

use std::time::{Duration, Instant};

use kiln_engine::TextStore;
use parking_lot::Mutex;
use redis::{Client, ConnectionAddr, ConnectionInfo};

use crate::error::{Error, Result};
use crate::redis_link::{Failure, Link};
use crate::seldom::Seldom;

/// The longest time of a call, from the connection to the last byte.
const LONGEST: Duration = Duration::from_millis(250);
/// How long nothing is asked after a failure.
const PAUSE: Duration = Duration::from_secs(5);
/// How long a text is kept after it was put in.
const KEEP_SECONDS: u64 = 7 * 24 * 3600;
/// The most bytes of an answer besides a value.
const MOST_HEADER: usize = 4096;
/// The time between two lines in the log about a store that stays away, or about its values.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// A store in Redis.
pub(crate) struct RedisTexts {
    info: ConnectionInfo,
    /// The address without user and password.
    shown: String,
    state: Mutex<State>,
    lines: Seldom,
    /// Lines about values that cannot be used: whoever writes there could have one for each text.
    values: Seldom,
}

#[derive(Default)]
struct State {
    link: Option<Link>,
    /// When it is asked again after a failure.
    again: Option<Instant>,
    /// Whether the last call failed.
    is_lost: bool,
}

impl RedisTexts {
    /// The store at `redis://HOST:PORT/NUMBER`, `valkey://..` or `unix:///PATH`. It is connected to when it is needed.
    ///
    /// # Errors
    /// [`Error::Value`] for another address.
    pub(crate) fn new(address: &str) -> Result<Self> {
        let plain = address.strip_prefix("valkey://").map(|rest| format!("redis://{rest}"));
        let client = Client::open(plain.as_deref().unwrap_or(address)).map_err(|error| Error::Value {
            name: "prompt_cache",
            found: "no address of a store".into(), // it may have a password
            expected: format!("redis://HOST:PORT ({error})"),
        })?;
        let info = client.get_connection_info().clone();
        let shown = match info.addr() {
            ConnectionAddr::Tcp(host, port) => format!("redis://{host}:{port}"),
            ConnectionAddr::Unix(path) => format!("unix://{}", path.display()),
            _ => "redis".into(), // addresses with TLS are refused above
        };
        Ok(Self {
            info,
            shown,
            state: Mutex::default(),
            lines: Seldom::new(BETWEEN_LINES),
            values: Seldom::new(BETWEEN_LINES),
        })
    }

    /// The result of `call` within [`LONGEST`], unless the store failed a short time ago.
    fn ask<T>(&self, call: impl FnOnce(&mut Link, Instant) -> std::result::Result<T, Failure>) -> Option<T> {
        let mut state = self.state.lock();
        if state.again.is_some_and(|again| Instant::now() < again) {
            return None;
        }
        let until = Instant::now() + LONGEST;
        let link = match state.link.take() {
            Some(link) => Ok(link),
            None => Link::open(&self.info, until),
        };
        let answered = link.and_then(|mut link| call(&mut link, until).map(|value| (link, value)));
        match answered {
            Ok((link, value)) => {
                if state.is_lost {
                    tracing::info!("Redis at {}, the store of encoded texts, answers again", self.shown);
                }
                *state = State { link: Some(link), again: None, is_lost: false };
                Some(value)
            }
            // The rest of the answer is not read: the next call has a connection of its own.
            Err(Failure::TooLarge(most)) => {
                self.warn(&format!(
                    "Redis at {}, the store of encoded texts, has a value of more than {most} bytes, which is not read",
                    self.shown
                ));
                None
            }
            Err(error) => {
                let is_new = !state.is_lost;
                *state = State { link: None, again: Some(Instant::now() + PAUSE), is_lost: true };
                if self.lines.is_due() || is_new {
                    tracing::warn!(
                        "Redis at {}, the store of encoded texts: {error}; the server goes on and encodes texts itself, and \
                         asks Redis again every {} s",
                        self.shown,
                        PAUSE.as_secs()
                    );
                }
                None
            }
        }
    }
}

impl TextStore for RedisTexts {
    fn get(&self, key: &str, most: usize) -> Option<Vec<u8>> {
        self.ask(|link, until| link.get(key, most.saturating_add(MOST_HEADER), until)).flatten()
    }

    fn put(&self, key: &str, value: &[u8]) {
        self.ask(|link, until| link.put(key, value, KEEP_SECONDS, MOST_HEADER, until));
    }

    fn warn(&self, text: &str) {
        if self.values.is_due() {
            tracing::warn!("{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn addresses_are_those_of_stores() {
        for address in ["redis://127.0.0.1:6379", "redis://:secret@host/2", "valkey://host"] {
            let store = RedisTexts::new(address).unwrap_or_else(|error| panic!("{address}: {error}"));
            assert!(store.shown.starts_with("redis://") && !store.shown.contains("secret"), "{}", store.shown);
        }
        for address in ["http://127.0.0.1", "32", ""] {
            let message = RedisTexts::new(address).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(message.contains("redis://HOST:PORT"), "{address}: {message}");
        }
    }

    #[test]
    fn a_store_that_is_lost_is_not_asked_for_a_while() {
        let store = RedisTexts::new("redis://127.0.0.1:1").unwrap();
        assert_eq!(store.get("a", 10), None);
        let again = store.state.lock().again;
        for _ in 0..1000 {
            store.put("a", b"b");
        }
        assert!(again.is_some() && store.state.lock().again == again, "no call was tried");
    }

    /// A server on a free port that answers each connection in this way, and the store there.
    fn answered_by(answer: impl Fn(TcpStream) + Send + Clone + 'static) -> RedisTexts {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answer = answer.clone();
                std::thread::spawn(move || answer(stream));
            }
        });
        RedisTexts::new(&format!("redis://{address}")).unwrap()
    }

    fn asked(stream: &mut TcpStream) {
        let _ = stream.read(&mut [0; 4096]); // a client that goes away is no fault
    }

    #[test]
    fn a_call_has_a_limit_of_time_however_often_a_byte_comes() {
        let store = answered_by(|mut stream| {
            asked(&mut stream);
            let _ = stream.write_all(b"$100000\r\n");
            while stream.write_all(b"A").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let start = Instant::now();
        assert_eq!(store.get("a", 200_000), None);
        // At 50 ms for each byte the whole value would take more than an hour.
        assert!(start.elapsed() < Duration::from_secs(60) && store.state.lock().is_lost);
    }

    #[test]
    fn a_value_that_is_too_large_is_not_read() {
        let store = answered_by(|mut stream| {
            asked(&mut stream);
            let _ = stream.write_all(b"$536870912\r\n");
            while stream.write_all(&[b'A'; 4096]).is_ok() {}
        });
        assert_eq!(store.get("a", 1000), None);
        let state = store.state.lock();
        assert!(
            state.link.is_none() && state.again.is_none(),
            "the connection is given up, and the store is asked again"
        );
    }

    #[test]
    fn answers_that_are_none_cost_no_more_than_the_text() {
        for answer in
            ["+OK\r\n", "-WRONGTYPE a list\r\n", ":7\r\n", "*1\r\n$1\r\na\r\n", "$-1\r\n", "nonsense\r\n", "$-5\r\n"]
        {
            let store = answered_by(move |mut stream| {
                asked(&mut stream);
                let _ = stream.write_all(answer.as_bytes());
            });
            assert_eq!(store.get("a", 100), None, "{answer:?}");
        }
    }
}
