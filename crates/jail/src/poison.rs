//! Access to a lock whose holder panicked.

use std::sync::{LockResult, PoisonError};

/// Ignores that a thread panicked while it held the lock. The values behind our locks are valid
/// after every single change, and a panic must not spread to the callers of other sessions.
pub trait IgnorePoison<T> {
    /// Returns the guard or the value, poisoned or not.
    fn ignore_poison(self) -> T;
}

impl<T> IgnorePoison<T> for LockResult<T> {
    fn ignore_poison(self) -> T {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}
