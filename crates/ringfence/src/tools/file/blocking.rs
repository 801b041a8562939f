//! Runs blocking work of the file tools and limits how much of it runs at once.

use std::sync::{Arc, OnceLock};

use tokio::sync::Semaphore;

use super::content::check_cancelled;
use crate::base::{CancelToken, Error, Result};

/// Concurrent pieces of blocking work per core.
const PERMITS_PER_CORE: usize = 4;

fn blocking_permits() -> &'static Arc<Semaphore> {
    static ALL: OnceLock<Arc<Semaphore>> = OnceLock::new();
    ALL.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Semaphore::new(cores * PERMITS_PER_CORE))
    })
}

/// Runs `work` on a blocking thread as soon as a permit is free.
///
/// The thread owns the permit: a call that no one waits for any more releases it only when its work
/// has really ended. Otherwise cancelled calls could pile up more threads than the limit allows.
pub async fn run_blocking<T: Send + 'static>(
    cancel: &CancelToken,
    failure_message: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    run_with_permit(blocking_permits(), cancel, failure_message, work).await
}

async fn run_with_permit<T: Send + 'static>(
    semaphore: &Arc<Semaphore>,
    cancel: &CancelToken,
    failure_message: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let permit = tokio::select! {
        permit = Arc::clone(semaphore).acquire_owned() => permit.map_err(|error| Error::internal(failure_message).with_source(error))?,
        _ = cancel.cancelled() => {
            check_cancelled(cancel)?;
            return Err(Error::internal(failure_message));
        }
    };
    let span = tracing::Span::current();
    let work = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        span.in_scope(work)
    });
    work.await.map_err(|error| Error::internal(failure_message).with_source(error))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{CancelCause, Kind};

    #[tokio::test]
    async fn work_that_was_given_up_keeps_its_turn_until_it_ends() {
        let turns = Arc::new(Semaphore::new(1));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let cancel = CancelToken::new();
        let first = run_with_permit(&turns, &cancel, "failed", move || {
            let _ = began.send(());
            let _ = wait.recv();
            Ok(())
        });
        let mut first = Box::pin(first);
        tokio::select! {
            _ = &mut first => panic!("it cannot have ended"),
            begun = has_begun => begun.unwrap(),
        }
        drop(first);
        assert_eq!(turns.available_permits(), 0);
        let late = CancelToken::new();
        late.cancel(CancelCause::Client);
        let error = run_with_permit(&turns, &late, "failed", || Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Cancelled);
        go.send(()).unwrap();
        assert_eq!(run_with_permit(&turns, &cancel, "failed", || Ok(7)).await.unwrap(), 7);
    }
}
