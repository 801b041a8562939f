//! Limits the number of records that refused calls can cause.
//!
//! A refused call costs its caller nothing, so a caller could fill the disk with records of them.
//! Each principal therefore has a token bucket: refused calls within it are recorded one by one,
//! those beyond it are counted, and one record (`call.refused`) holds the count. No refused call is
//! missing from the log, and calls that run are never delayed.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::base::token_bucket::TokenBucket;

/// An agent that guesses names or arguments stays below both limits, because it waits for one
/// answer before the next guess. At this rate a hostile caller writes a few kilobytes per second.
const BURST: u32 = 100;
const INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of principals remembered. Beyond it, the one whose last refusal is oldest is
/// forgotten.
const MAX_PRINCIPALS: usize = 1024;

/// Event name of a count.
pub(super) const REFUSED_EVENT: &str = "call.refused";

/// Limits and counts for the refused calls of all principals.
#[derive(Default)]
pub(super) struct RefusalLimits {
    principals: HashMap<String, PrincipalLimit>,
}

struct PrincipalLimit {
    bucket: TokenBucket,
    last_refused: Instant,
    unrecorded: Option<RefusalCount>,
}

/// Refused calls that have no record of their own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusalCount {
    pub(super) principal: String,
    pub(super) count: u64,
    /// Number of refusals per kind of error.
    errors: BTreeMap<&'static str, u64>,
    first: String,
    last: String,
}

impl RefusalCount {
    pub(super) fn to_fields(&self) -> Map<String, Value> {
        let fields = json!({
            "principal": self.principal, "count": self.count, "errors": self.errors, "first": self.first,
            "last": self.last,
        });
        super::to_object(fields)
    }
}

impl RefusalLimits {
    /// Returns Ok if one more refused call gets its own record, otherwise the time until the next
    /// one does. Also returns the count of a principal that had to be forgotten.
    pub(super) fn admit_refusal(
        &mut self,
        principal: &str,
        now: Instant,
    ) -> (std::result::Result<(), Duration>, Option<RefusalCount>) {
        let evicted =
            if self.principals.contains_key(principal) { None } else { self.make_room(now) };
        let limit = self.limit_for(principal, now);
        limit.last_refused = now;
        (limit.bucket.take_token(now), evicted)
    }

    /// Counts a call that was not admitted. Returns true for the first since the last count was
    /// taken.
    pub(super) fn count_refusal(
        &mut self,
        principal: &str,
        error: &'static str,
        now: Instant,
        ts: String,
    ) -> bool {
        // A principal forgotten since `admit_refusal` is added again: the call must be counted
        // somewhere.
        let limit = self.limit_for(principal, now);
        let is_first = limit.unrecorded.is_none();
        let refusal_count = limit.unrecorded.get_or_insert_with(|| RefusalCount {
            principal: principal.to_owned(),
            count: 0,
            errors: BTreeMap::new(),
            first: ts.clone(),
            last: String::new(),
        });
        refusal_count.count += 1;
        *refusal_count.errors.entry(error).or_default() += 1;
        refusal_count.last = ts;
        is_first
    }

    /// Takes the count of this principal.
    pub(super) fn take_count(&mut self, principal: &str) -> Option<RefusalCount> {
        self.principals.get_mut(principal)?.unrecorded.take()
    }

    /// Takes the counts of all principals.
    pub(super) fn take_all_counts(&mut self) -> Vec<RefusalCount> {
        self.principals.values_mut().filter_map(|limit| limit.unrecorded.take()).collect()
    }

    fn limit_for(&mut self, principal: &str, now: Instant) -> &mut PrincipalLimit {
        self.principals.entry(principal.to_owned()).or_insert_with(|| PrincipalLimit {
            bucket: TokenBucket::new(BURST, INTERVAL),
            last_refused: now,
            unrecorded: None,
        })
    }

    /// Forgets principals until there is room for one more, starting with those for which nothing
    /// is lost.
    fn make_room(&mut self, now: Instant) -> Option<RefusalCount> {
        if self.principals.len() < MAX_PRINCIPALS {
            return None;
        }
        self.principals.retain(|_, limit| limit.unrecorded.is_some() || !limit.bucket.is_full(now));
        if self.principals.len() < MAX_PRINCIPALS {
            return None;
        }
        let oldest_principal = self
            .principals
            .iter()
            .min_by_key(|(_, limit)| limit.last_refused)
            .map(|(name, _)| name.clone())?;
        self.principals.remove(&oldest_principal)?.unrecorded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(
        limits: &mut RefusalLimits,
        principal: &str,
        now: Instant,
    ) -> (bool, Option<RefusalCount>) {
        let (admitted, forgotten) = limits.admit_refusal(principal, now);
        if admitted.is_err() {
            limits.count_refusal(principal, "unknown_tool", now, "t".into());
        }
        (admitted.is_ok(), forgotten)
    }

    #[test]
    fn every_refused_call_is_admitted_or_counted() {
        let mut limits = RefusalLimits::default();
        let start = Instant::now();
        let admitted = (0..1000).filter(|_| refuse(&mut limits, "anna", start).0).count();
        assert_eq!(admitted, BURST as usize);
        assert!(refuse(&mut limits, "ben", start).0, "another principal has its own");
        let counted = limits.take_count("anna").unwrap();
        assert_eq!((counted.count, counted.errors["unknown_tool"]), (900, 900));
        assert_eq!(limits.take_count("anna"), None);
        assert!(refuse(&mut limits, "anna", start + INTERVAL).0);
        assert!(!refuse(&mut limits, "anna", start + INTERVAL).0);
        assert_eq!(limits.take_all_counts().iter().map(|counted| counted.count).sum::<u64>(), 1);
    }

    #[test]
    fn principals_are_bounded_and_no_count_is_lost() {
        let mut limits = RefusalLimits::default();
        let start = Instant::now();
        let (mut refused, mut accounted) = (0, 0);
        for n in 0..MAX_PRINCIPALS as u32 + 50 {
            for _ in 0..BURST + 3 {
                let now = start + Duration::from_micros(u64::from(n));
                let (admitted, forgotten) = refuse(&mut limits, &format!("p{n}"), now);
                refused += 1;
                accounted += u64::from(admitted) + forgotten.map_or(0, |counted| counted.count);
            }
            assert!(limits.principals.len() <= MAX_PRINCIPALS);
        }
        accounted += limits.take_all_counts().iter().map(|counted| counted.count).sum::<u64>();
        assert_eq!(accounted, refused);
        // Once their buckets are full again, nothing of them is kept.
        let later = start + 2 * BURST * INTERVAL;
        refuse(&mut limits, "one more", later);
        assert_eq!(limits.principals.len(), 1);
    }
}
