//! Refused calls that are too frequent to be recorded one by one, and are counted instead.

use std::time::Duration;

use super::Pipeline;
use crate::audit::CallRecord;
use crate::base::{Error, Kind};

/// A count is written at most this long after its first call, so that a killed server loses little.
const COUNT_DELAY: Duration = Duration::from_secs(5);

impl Pipeline {
    /// Ends a refused call without an audit record of its own and returns the error for the caller.
    pub(super) fn count_refusal(&self, record: CallRecord, error: &Error, wait: Duration) -> Error {
        let principal = record.principal().to_owned();
        if record.count_refusal(error) {
            let audit = self.audit.clone();
            // Not tracked as a call in flight: shutdown does not wait for this task, but writes the
            // count itself.
            tokio::spawn(async move {
                tokio::time::sleep(COUNT_DELAY).await;
                audit.write_refusal_count(&principal);
            });
        }
        build_refusal(error, wait)
    }
}

/// Returns an error that still says what was wrong, so that a faulty caller can correct itself.
fn build_refusal(error: &Error, wait: Duration) -> Error {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
    let message = format!(
        "too many calls were refused, and so was this one ({}): {}",
        error.kind().name(),
        error
    );
    Error::new(Kind::ResourceExhausted, message)
        .with_reason("refused_calls")
        .with_hint(format!(
            "Correct the call. Valid calls still run; wait {wait_ms} ms after one that is refused."
        ))
        .with_fact("retry_after_ms", wait_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_says_what_was_wrong_and_when_to_try_again() {
        let refused = Error::new(Kind::UnknownTool, "there is no tool `x`");
        let error = build_refusal(&refused, Duration::from_millis(150));
        assert_eq!(
            (error.kind(), error.reason_name()),
            (Kind::ResourceExhausted, Some("refused_calls"))
        );
        assert!(error.message().contains("(unknown_tool): there is no tool `x`"), "{error}");
        assert!(error.hint_text().unwrap().contains("wait 151 ms"), "{error:?}");
        assert_eq!(error.get_fact("retry_after_ms"), Some(&151.into()));
    }
}
