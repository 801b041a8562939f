//! Applies `[audit] keep` while a server runs: at startup and then once a day.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::audit::AuditLog;
use crate::audit::prune::{has_files_before, prune_log};
use crate::base::clock::format_utc;
use crate::base::visible;
use crate::mcp::Server;

const DAY: Duration = Duration::from_secs(86_400);
/// Interval between checks. Timers stop while a machine is suspended, so the day itself is measured
/// by the wall clock.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Value of `by` in the prune record.
const PRUNED_BY: &str = "audit.keep";

/// Prunes the audit log whenever that is due. Failures are only logged: a server that cannot remove
/// old records can still serve.
pub async fn prune_periodically(server: Arc<Server>) {
    let mut last: Option<(Duration, SystemTime)> = None;
    loop {
        // Read again each time, since a reload may have changed it.
        if let Some(retention) = server.pipeline.state().config.audit_retention
            && is_due(last, retention)
        {
            last = Some((retention, SystemTime::now()));
            let (audit, root) = (server.pipeline.audit.clone(), server.config.root.clone());
            let task =
                tokio::task::spawn_blocking(move || prune_older_than(&audit, &root, retention));
            if let Err(error) = task.await {
                tracing::warn!("the audit log was not pruned: {error}");
            }
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

fn is_due(last: Option<(Duration, SystemTime)>, retention: Duration) -> bool {
    // If the clock was turned back, prune: pruning twice does no harm.
    last.is_none_or(|(last_retention, last_pruned)| {
        last_retention != retention || last_pruned.elapsed().map_or(true, |elapsed| elapsed >= DAY)
    })
}

fn prune_older_than(audit: &AuditLog, root: &std::path::Path, retention: Duration) {
    audit.rotate_older_than(DAY);
    // A retention period longer than the clock can represent removes nothing.
    let Some(before) = SystemTime::now().checked_sub(retention).map(format_utc) else { return };
    if !has_files_before(root, &before) {
        return;
    }
    match prune_log(root, &before, PRUNED_BY) {
        Ok(report) if report.removed.is_empty() => {}
        Ok(report) => {
            tracing::info!("{} audit files from before {before} were pruned", report.removed.len())
        }
        Err(error) => {
            let hint = error.hint_text().unwrap_or_else(|| error.kind().default_hint());
            tracing::warn!(
                "`[audit] keep`: {}. {}",
                error.log_line(),
                visible::escape_to_line(hint)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_at_the_start_once_a_day_and_when_the_config_changes() {
        let now = SystemTime::now();
        assert!(is_due(None, 90 * DAY));
        assert!(!is_due(Some((90 * DAY, now)), 90 * DAY));
        assert!(is_due(Some((90 * DAY, now)), 30 * DAY));
        assert!(is_due(Some((90 * DAY, now - DAY)), 90 * DAY));
        assert!(is_due(Some((90 * DAY, now + DAY)), 90 * DAY), "the clock was turned back");
    }
}
