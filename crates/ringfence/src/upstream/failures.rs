//! Failures to connect, remembered across sessions: a server that refuses or crashes is not tried
//! again by every new session at once, and one that refused our credentials not at all until the
//! entry changes. A server with logins is tried again once there is another login.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ringfence_client::{ClientError, ClientStatus, ErrorKind, ServerClient};

use super::client_error::to_call_error;
use crate::base::{IgnorePoison, Result};
use crate::session::Principal;

/// Wait after the second failure in a row; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(600);
/// Failures that are remembered.
const MAX_FAILURES: usize = 10_000;

/// One server as it is configured, for one principal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FailureKey {
    pub definition: String,
    pub principal: Principal,
}

struct RecentFailure {
    server_id: String,
    error: ClientError,
    count: u32,
    /// `None` if only another entry helps.
    retry_at: Option<Instant>,
}

/// Failures of servers that have not been connected since.
#[derive(Default)]
pub struct RecentFailures(Mutex<HashMap<FailureKey, RecentFailure>>);

impl RecentFailures {
    /// Fails if the server is not to be tried yet.
    pub fn check_retry(&self, key: &FailureKey) -> Result<()> {
        let failures = self.lock();
        let Some(failure) = failures.get(key) else { return Ok(()) };
        match failure.retry_at {
            Some(retry_at) if retry_at <= Instant::now() => Ok(()),
            _ => Err(to_call_error(&failure.error, &failure.server_id)),
        }
    }

    /// Returns the last failure of a server, and when it is tried again: `None` if only another
    /// entry helps.
    pub fn get_failure(&self, key: &FailureKey) -> Option<(ClientError, Option<Duration>)> {
        let failures = self.lock();
        let failure = failures.get(key)?;
        let wait = failure.retry_at.map(|at| at.saturating_duration_since(Instant::now()));
        Some((failure.error.clone(), wait))
    }

    /// Forgets the failures of a server, because there is another login.
    pub fn forget_failure(&self, key: &FailureKey) {
        self.lock().remove(key);
    }

    /// Records whether a server could be connected.
    pub fn record_outcome(
        &self,
        key: &FailureKey,
        client: &ServerClient,
        has_logins: bool,
        error: Option<&ClientError>,
    ) {
        let Some(error) = error else {
            self.lock().remove(key);
            return;
        };
        // Other errors belong to one request; the client itself knows when to connect again.
        let ClientStatus::Failed { retry_in, .. } = client.status() else { return };
        let mut failures = self.lock();
        let count = failures.get(key).map_or(0, |failure| failure.count).saturating_add(1);
        // A login comes from outside, so that its lack must not be remembered without an end.
        let is_refused =
            error.kind() == ErrorKind::Unauthenticated && retry_in.is_none() && !has_logins;
        let failure = RecentFailure {
            server_id: client.server_id().to_owned(),
            error: error.clone(),
            count,
            retry_at: (!is_refused).then(|| Instant::now() + wait_after(count)),
        };
        if failures.len() < MAX_FAILURES || failures.contains_key(key) {
            failures.insert(key.clone(), failure);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FailureKey, RecentFailure>> {
        self.0.lock().ignore_poison()
    }
}

/// Returns the wait after so many failures. The first may be an accident; later waits differ by
/// chance, since sessions that failed together must not come back together.
fn wait_after(count: u32) -> Duration {
    match count {
        0 | 1 => Duration::ZERO,
        count => {
            let doubled = FIRST_WAIT.saturating_mul(1 << (count - 2).min(16)).min(MAX_WAIT);
            let chance = RandomState::new().build_hasher().finish() % 512;
            doubled.mul_f64(0.75 + chance as f64 / 1024.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_end() {
        let waits = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600];
        for (count, seconds) in (1..).zip(waits).chain([(u32::MAX, 600)]) {
            let (wait, middle) = (wait_after(count).as_secs_f64(), f64::from(seconds));
            assert!((middle * 0.75..=middle * 1.25).contains(&wait), "{count}: {wait}");
        }
    }

    #[test]
    fn sessions_that_failed_together_do_not_come_back_together() {
        assert!((0..50).any(|_| wait_after(5) != wait_after(5)));
    }
}
