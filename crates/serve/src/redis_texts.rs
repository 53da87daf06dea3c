//! Encoded texts in Redis or Valkey, which servers share. What goes wrong there costs time, and never a request.

use std::time::{Duration, Instant};

use kiln_engine::TextStore;
use parking_lot::Mutex;
use redis::{Client, Commands, Connection, RedisResult};

use crate::error::{Error, Result};

/// The longest time of a call.
const LONGEST: Duration = Duration::from_millis(250);
/// How long nothing is asked after a failure.
const PAUSE: Duration = Duration::from_secs(5);
/// How long a text is kept after it was put in.
const KEEP_SECONDS: u64 = 7 * 24 * 3600;

/// A store in Redis.
pub(crate) struct RedisTexts {
    client: Client,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// When it is asked again after a failure.
    again: Option<Instant>,
}

impl RedisTexts {
    /// The store at `redis://HOST:PORT/NUMBER`, `rediss` or `valkey`. It is connected to when it is needed.
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
        Ok(Self { client, state: Mutex::default() })
    }

    /// What `call` gives, unless the store failed now or a short time ago.
    fn ask<T>(&self, call: impl FnOnce(&mut Connection) -> RedisResult<T>) -> Option<T> {
        let mut state = self.state.lock();
        if state.again.is_some_and(|again| Instant::now() < again) {
            return None;
        }
        match self.connected(&mut state).and_then(call) {
            Ok(value) => {
                state.again = None;
                Some(value)
            }
            Err(error) => {
                tracing::warn!("the store of encoded texts: {error}");
                *state = State { connection: None, again: Some(Instant::now() + PAUSE) };
                None
            }
        }
    }

    fn connected<'a>(&self, state: &'a mut State) -> RedisResult<&'a mut Connection> {
        let connection = match state.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.client.get_connection_with_timeout(LONGEST)?;
                connection.set_read_timeout(Some(LONGEST))?;
                connection.set_write_timeout(Some(LONGEST))?;
                connection
            }
        };
        Ok(state.connection.insert(connection))
    }
}

impl TextStore for RedisTexts {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.ask(|connection| connection.get::<_, Option<Vec<u8>>>(key)).flatten()
    }

    fn put(&self, key: &str, value: &[u8]) {
        self.ask(|connection| connection.set_ex::<_, _, ()>(key, value, KEEP_SECONDS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_stores() {
        for address in ["redis://127.0.0.1:6379", "redis://:secret@host/2", "valkey://host"] {
            assert!(RedisTexts::new(address).is_ok(), "{address}");
        }
        for address in ["http://127.0.0.1", "32", ""] {
            let message = RedisTexts::new(address).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(message.contains("redis://HOST:PORT"), "{address}: {message}");
        }
    }

    #[test]
    fn a_store_that_is_lost_is_not_asked_for_a_while() {
        let store = RedisTexts::new("redis://127.0.0.1:1").unwrap();
        assert_eq!(store.get("a"), None);
        let start = Instant::now();
        for _ in 0..1000 {
            store.put("a", b"b");
        }
        assert!(start.elapsed() < LONGEST && store.state.lock().again.is_some());
    }
}
