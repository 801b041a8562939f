//! Bearer tokens, good and bad.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

pub const SECRET: &str = "a secret of at least thirty-two bytes";

pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

pub fn claims(subject: &str) -> Value {
    json!({"sub": subject, "exp": now() + 600})
}

pub fn sign(claims: &Value, secret: &str) -> String {
    jsonwebtoken::encode(
        &Header::new(Algorithm::HS256),
        claims,
        &EncodingKey::from_secret(secret.as_bytes()),
    )
    .unwrap()
}

/// A token of this subject that the servers of these tests take.
pub fn of(subject: &str) -> String {
    sign(&claims(subject), SECRET)
}
