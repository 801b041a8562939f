//! Where logins are kept. The embedding program decides.

use futures::future::BoxFuture;

use super::secret::SecretText;
use crate::error::Result;

/// Keeps the login of each server: one text per server id, which contains tokens.
pub trait CredentialStore: Send + Sync {
    /// Returns the text that was saved last.
    fn load<'a>(&'a self, server_id: &'a str) -> BoxFuture<'a, Result<Option<SecretText>>>;

    /// Replaces the text, entirely or not at all. When it returns, the text must outlive a crash: an
    /// authorization server may accept a refresh token only once.
    fn save<'a>(&'a self, server_id: &'a str, text: SecretText) -> BoxFuture<'a, Result<()>>;

    /// Removes the text.
    fn clear<'a>(&'a self, server_id: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Waits until no one else has the lock of the server, in this process or another, and takes it.
    /// `load`, `save` and `clear` must work while it is taken. The wait must end when its future is
    /// dropped.
    fn lock<'a>(&'a self, server_id: &'a str) -> BoxFuture<'a, Result<StoreLock>>;
}

/// Lock of one server's login. Dropping it releases the lock.
#[must_use = "dropping the lock releases it"]
pub struct StoreLock(#[expect(dead_code, reason = "dropped, not read")] Box<dyn Send>);

impl StoreLock {
    /// Wraps what releases the lock when it is dropped.
    pub fn new(guard: impl Send + 'static) -> StoreLock {
        StoreLock(Box::new(guard))
    }
}
