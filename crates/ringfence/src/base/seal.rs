//! Sealed text: state that travels through a client and comes back, or is kept in a file. It is
//! encrypted and authenticated (AEAD), so it can be neither read nor changed, and it opens only for
//! the purpose it was sealed for (the associated data).

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Error, Result};
use super::ids::random_bytes;

/// Key that seals and opens text.
pub struct Sealer(LessSafeKey);

impl Sealer {
    /// Creates a sealer with a random key. One key per process is enough: the state refers to
    /// things that live only in this process.
    pub fn new() -> Result<Self> {
        Sealer::with_key(&random_bytes::<32>())
    }

    /// Creates a sealer for text that outlives the process. Nonces are random, so one key is safe
    /// for 2^32 texts: far more than people type, or logins are renewed.
    pub fn with_key(key: &[u8; 32]) -> Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, key)
            .map_err(|error| Error::internal("cannot make a sealing key").with_source(error))?;
        Ok(Sealer(LessSafeKey::new(key)))
    }

    /// Seals a value for a purpose; it can be opened only for the same purpose.
    pub fn seal<T: Serialize>(&self, purpose: &str, value: &T) -> Result<String> {
        let failed = || Error::internal("cannot seal state");
        let mut text = serde_json::to_vec(value).map_err(|error| failed().with_source(error))?;
        let nonce = random_bytes::<NONCE_LEN>();
        self.0
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(purpose.as_bytes()),
                &mut text,
            )
            .map_err(|error| failed().with_source(error))?;
        let mut sealed = nonce.to_vec();
        sealed.append(&mut text);
        Ok(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Opens sealed text; `None` for anything that was not sealed with this key for this purpose.
    pub fn open<T: DeserializeOwned>(&self, purpose: &str, sealed: &str) -> Option<T> {
        let mut bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let nonce: [u8; NONCE_LEN] = bytes.get(..NONCE_LEN)?.try_into().ok()?;
        let text = self
            .0
            .open_in_place(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(purpose.as_bytes()),
                bytes.get_mut(NONCE_LEN..)?,
            )
            .ok()?;
        serde_json::from_slice(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_once_untouched_and_only_for_its_purpose() {
        let sealer = Sealer::new().unwrap();
        let sealed = sealer.seal("run alice", &"r-1").unwrap();
        assert_eq!(sealer.open::<String>("run alice", &sealed).as_deref(), Some("r-1"));
        assert!(sealer.open::<String>("run bob", &sealed).is_none());
        assert!(Sealer::new().unwrap().open::<String>("run alice", &sealed).is_none());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(sealer.open::<String>("run alice", &changed).is_none(), "byte {at}");
        }
    }
}
