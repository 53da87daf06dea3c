//! A store of texts whose values are sealed by a secret that servers share, so that other writers decide on no image.

use std::sync::Arc;
use std::time::Duration;

use kiln_engine::TextStore;
use kiln_files::hex;
use ring::hmac::{HMAC_SHA256, Key, sign, verify};

use crate::error::{Error, Result};
use crate::seldom::Seldom;

/// Bytes of a seal.
const SEAL: usize = 32;
/// The least bytes of a secret: a shorter one may be guessed from a value.
const LEAST_SECRET: usize = 16;
/// The time between two lines in the log about values that others have written.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// A store behind seals: the HMAC-SHA256 of a value and its name. Names are sealed, too, so that they do not reveal texts, and
/// servers with other secrets have values of their own.
pub(crate) struct SealedTexts {
    store: Arc<dyn TextStore>,
    key: Key,
    lines: Seldom,
}

impl SealedTexts {
    /// A store whose values are sealed by `secret`.
    ///
    /// # Errors
    /// [`Error::Value`] for a secret that is too short.
    pub(crate) fn new(store: Arc<dyn TextStore>, secret: &str) -> Result<Self> {
        if secret.len() < LEAST_SECRET {
            return Err(Error::Value {
                name: "prompt_cache_key",
                found: format!("a secret of {} bytes", secret.len()),
                expected: format!("at least {LEAST_SECRET} bytes, as from `openssl rand -hex 32`"),
            });
        }
        Ok(Self { store, key: Key::new(HMAC_SHA256, secret.as_bytes()), lines: Seldom::new(BETWEEN_LINES) })
    }

    fn name(&self, name: &str) -> String {
        format!("kiln:sealed:{}", hex(sign(&self.key, name.as_bytes()).as_ref()))
    }
}

/// The bytes that are signed: no name contains a zero byte.
fn sealed(name: &str, value: &[u8]) -> Vec<u8> {
    [name.as_bytes(), &[0], value].concat()
}

impl TextStore for SealedTexts {
    fn get(&self, name: &str, most: usize) -> Option<Vec<u8>> {
        let mut found = self.store.get(&self.name(name), most.saturating_add(SEAL))?;
        let (seal, value) = found.split_at_checked(SEAL).unwrap_or_default();
        if verify(&self.key, &sealed(name, value), seal).is_err() {
            if self.lines.is_due() {
                tracing::warn!(
                    "the store of encoded texts has a value without the seal of `prompt_cache_key`: someone else writes there; \
                     the text is encoded again"
                );
            }
            return None;
        }
        Some(found.split_off(SEAL))
    }

    fn warn(&self, text: &str) {
        self.store.warn(text);
    }

    fn put(&self, name: &str, value: &[u8]) {
        let seal = sign(&self.key, &sealed(name, value));
        self.store.put(&self.name(name), &[seal.as_ref(), value].concat());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct Values(Mutex<HashMap<String, Vec<u8>>>);

    impl TextStore for Values {
        fn get(&self, key: &str, most: usize) -> Option<Vec<u8>> {
            self.0.lock().get(key).filter(|value| value.len() <= most).cloned()
        }

        fn put(&self, key: &str, value: &[u8]) {
            self.0.lock().insert(key.into(), value.into());
        }
    }

    const SECRET: &str = "sixteen bytes of it";

    #[test]
    fn values_of_others_are_refused() {
        let values = Arc::new(Values::default());
        let store = SealedTexts::new(values.clone(), SECRET).unwrap();
        store.put("a", b"pear");
        store.put("b", b"fig");
        assert_eq!((store.get("a", 4), store.get("b", 4)), (Some(b"pear".to_vec()), Some(b"fig".to_vec())));
        assert_eq!((store.get("a", 3), store.get("c", 9)), (None, None));
        let (a, b) = (store.name("a"), store.name("b"));
        assert!(a.len() == b.len() && !a.contains("pear"));
        let original = values.get(&a, 100).unwrap();
        let mut changed = original.clone();
        changed[SEAL] ^= 1;
        let of_b = values.get(&b, 100).unwrap();
        for wrong in [b"".to_vec(), vec![0; SEAL], original[..SEAL].to_vec(), changed, of_b, b"pear".to_vec()] {
            values.put(&a, &wrong);
            assert_eq!(store.get("a", 100), None, "{wrong:?}");
        }
        values.put(&a, &original);
        assert!(store.get("a", 4).is_some());
        let other = SealedTexts::new(values.clone(), "another secret of them").unwrap();
        assert_eq!(other.get("a", 100), None);
    }

    #[test]
    fn a_secret_that_may_be_guessed_is_refused() {
        for short in ["", "secret", "fifteen bytes.."] {
            let refused = SealedTexts::new(Arc::new(Values::default()), short).err().map(|error| error.to_string());
            assert!(refused.as_ref().is_some_and(|text| text.starts_with("`prompt_cache_key`")), "{refused:?}");
        }
    }
}
