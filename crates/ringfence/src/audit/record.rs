//! Record of one call, as a guard: however the call ends, it is recorded once, by a `call.stop` or
//! in the count of its principal's refused calls.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::AuditLog;
use super::chain::RecordMembers;
use crate::base::call::{CallFacts, CallStatus};
use crate::base::clock::now_utc;
use crate::base::{CancelCause, Error, Kind, Result, TraceId};
use crate::redact::known_secrets;

/// Order in which a call's members are written; others follow in the order in which they were
/// added.
const FIELD_ORDER: [&str; 12] = [
    "trace_id",
    "session",
    "principal",
    "workspace",
    "transport",
    "protocol",
    "client",
    "tool",
    "arguments_hash",
    "cwd",
    "profile",
    "timeout_ms",
];

/// The only outcome after which a call runs.
const APPROVED: &str = "approved";

/// Members of its call that an approval repeats.
const APPROVAL_FIELDS: [&str; 5] = ["trace_id", "session", "principal", "tool", "arguments_hash"];

/// Members of an event, in the order in which they were added. There are few of them, and their
/// names are constants, so that a map would cost more than it saves.
#[derive(Clone, Default)]
struct EventFields(Vec<(Cow<'static, str>, Value)>);

impl EventFields {
    /// Creates the members of an event of a call.
    fn for_trace(trace_id: &TraceId) -> EventFields {
        let mut fields = EventFields(Vec::with_capacity(18));
        fields.set_field("trace_id".into(), trace_id.as_str().into());
        fields
    }

    fn find_field(&self, name: &str) -> Option<&Value> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Adds a member, or replaces the one with this name.
    fn set_field(&mut self, name: Cow<'static, str>, value: Value) {
        match self.0.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    fn principal(&self) -> &str {
        self.find_field("principal").and_then(Value::as_str).unwrap_or_default()
    }
}

/// Record of one call. If dropped without `finish`, it writes `aborted`.
pub struct CallRecord {
    audit: AuditLog,
    fields: EventFields,
    opened: Instant,
    started: Option<(String, Instant)>,
    /// The members as `call.start` has them, and the version of the secrets that they were redacted
    /// with.
    start_members: Option<(RecordMembers, usize)>,
    finished: bool,
    refusal: Arc<CallRefusal>,
}

/// Decision whether a call that never runs gets its own record. Made only once, so that its
/// `approval` and its `call.stop` are both recorded or both left out.
#[derive(Default)]
struct CallRefusal {
    has_started: AtomicBool,
    admitted: OnceLock<std::result::Result<(), Duration>>,
}

impl CallRefusal {
    /// A call that runs is always recorded.
    fn admit_refusal(
        &self,
        audit: &AuditLog,
        fields: &EventFields,
    ) -> std::result::Result<(), Duration> {
        if self.has_started.load(Ordering::Acquire) {
            return Ok(());
        }
        *self.admitted.get_or_init(|| audit.admit_refusal(fields.principal()))
    }
}

impl CallRecord {
    /// Creates the record without writing anything. Members not known yet are added with
    /// `set_fields`.
    pub fn open<N: Into<Cow<'static, str>>>(
        audit: &AuditLog,
        trace_id: &TraceId,
        fields: impl IntoIterator<Item = (N, Value)>,
    ) -> CallRecord {
        let mut record = CallRecord {
            audit: audit.clone(),
            fields: EventFields::for_trace(trace_id),
            opened: Instant::now(),
            started: None,
            start_members: None,
            finished: false,
            refusal: Arc::default(),
        };
        record.set_fields(fields);
        record
    }

    /// Adds or replaces members, except the trace id.
    pub fn set_fields<N: Into<Cow<'static, str>>>(
        &mut self,
        fields: impl IntoIterator<Item = (N, Value)>,
    ) {
        self.start_members = None;
        for (name, value) in fields {
            let name: Cow<'static, str> = name.into();
            if name != "trace_id" {
                self.fields.set_field(name, value);
            }
        }
    }

    /// Adds or replaces one member.
    pub fn set_field(&mut self, name: &'static str, value: impl Into<Value>) {
        self.set_fields([(name, value.into())]);
    }

    /// Returns a writer for further events of this call, which also works while the call runs.
    pub fn call_events(&self) -> CallEvents {
        let repeated = APPROVAL_FIELDS
            .iter()
            .filter_map(|name| Some((Cow::Borrowed(*name), self.fields.find_field(name)?.clone())));
        CallEvents {
            audit: self.audit.clone(),
            fields: Arc::new(EventFields(repeated.collect())),
            refusal: Arc::clone(&self.refusal),
        }
    }

    /// Writes `call.start`. If this fails, the call must not run.
    pub fn write_start(&mut self) -> Result<()> {
        let secrets_version = known_secrets::set_version();
        let members = self.redacted_members();
        self.audit.write_members("call.start", members.clone())?;
        self.start_members = Some((members, secrets_version));
        self.started = Some((now_utc(), Instant::now()));
        self.refusal.has_started.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the principal that made the call.
    pub fn principal(&self) -> &str {
        self.fields.principal()
    }

    /// Returns Ok if a call that ends without having run may have its own record. Otherwise returns
    /// the time until its principal's next refused call may, and the record must be ended with
    /// [`CallRecord::count_refusal`].
    pub fn admit_refusal(&self) -> std::result::Result<(), Duration> {
        self.refusal.admit_refusal(&self.audit, &self.fields)
    }

    /// Ends the record of a refused call by adding it to its principal's count. Returns true for
    /// the first call of a count, which then has to be written: see
    /// [`AuditLog::write_refusal_count`].
    pub fn count_refusal(mut self, error: &Error) -> bool {
        self.finished = true;
        self.audit.count_refusal(self.fields.principal(), error.kind().name())
    }

    /// Writes `call.stop`.
    pub fn finish(mut self, facts: &CallFacts, error: Option<&Error>, cause: Option<CancelCause>) {
        self.write_stop(call_status(facts, error, cause), facts, error, cause);
    }

    fn write_stop(
        &mut self,
        status: &str,
        facts: &CallFacts,
        error: Option<&Error>,
        cause: Option<CancelCause>,
    ) {
        self.finished = true;
        let mut fields: Vec<(&str, Value)> = Vec::with_capacity(16);
        let mut add = |name: &'static str, value: Option<Value>| {
            fields.extend(value.map(|value| (name, value)));
        };
        add("status", Some(status.into()));
        add("error", error.map(|error| error.kind().name().into()));
        add("reason", error.and_then(Error::reason_name).map(Into::into));
        add("cause", cause.map(|cause| cause.name().into()));
        add("exit_code", facts.exit_code.map(Into::into));
        add("signal", facts.signal.map(Into::into));
        add("stdout_bytes", facts.stdout_bytes.map(Into::into));
        add("stderr_bytes", facts.stderr_bytes.map(Into::into));
        add("denials", (!facts.denials.is_empty()).then(|| facts.denials.clone().into()));
        add(
            "git_changed",
            (!facts.git_changed.is_empty()).then(|| facts.git_changed.clone().into()),
        );
        add("execs", facts.unruled_execs.clone());
        add("report", facts.report_gap.map(Into::into));
        add("tier", facts.weaker_tier.map(Into::into));
        let start_time = self.started.as_ref().map_or(self.opened, |(_, start_time)| *start_time);
        add("started", self.started.take().map(|(timestamp, _)| timestamp.into()));
        add("stopped", Some(now_utc().into()));
        add(
            "duration_ms",
            Some(u64::try_from(start_time.elapsed().as_millis()).unwrap_or(u64::MAX).into()),
        );
        // A secret that became known while the call ran must not be in the second record.
        let mut members = match self.start_members.take() {
            Some((members, version)) if version == known_secrets::set_version() => members,
            _ => self.redacted_members(),
        };
        members.add_redacted(fields.iter().map(|(name, value)| (*name, value)));
        self.audit.write_stop(members);
    }

    fn redacted_members(&self) -> RecordMembers {
        let first =
            FIELD_ORDER.iter().filter_map(|name| Some((*name, self.fields.find_field(name)?)));
        let rest = self.fields.iter().filter(|(name, _)| !FIELD_ORDER.contains(name));
        RecordMembers::redacted(first.chain(rest))
    }
}

/// Writes events of a call (approvals, execs, network decisions, the end of a background run) under
/// the call's own trace id.
#[derive(Clone)]
pub struct CallEvents {
    audit: AuditLog,
    fields: Arc<EventFields>,
    refusal: Arc<CallRefusal>,
}

impl CallEvents {
    /// Writes an approval: the outcome (`approved`, `denied` or `expired`), who decided, and for
    /// how long (`mode`).
    pub fn write_approval(&self, outcome: &str, answered_by: &str, mode: &str) -> Result<()> {
        // The call ends here and is then counted instead.
        if outcome != APPROVED && self.refusal.admit_refusal(&self.audit, &self.fields).is_err() {
            return Ok(());
        }
        let facts = [("outcome", outcome), ("by", answered_by), ("mode", mode)];
        self.write_event("approval", facts.map(|(name, value)| (name, value.into())))
    }

    /// Creates a writer for events that belong to no call.
    pub fn without_call<N: Into<Cow<'static, str>>>(
        audit: &AuditLog,
        trace_id: &TraceId,
        fields: impl IntoIterator<Item = (N, Value)>,
    ) -> CallEvents {
        let mut members = EventFields::for_trace(trace_id);
        fields.into_iter().for_each(|(name, value)| members.set_field(name.into(), value));
        CallEvents { audit: audit.clone(), fields: Arc::new(members), refusal: Arc::default() }
    }

    /// Returns a writer whose events have this member too.
    #[must_use]
    pub fn with_field(&self, name: &'static str, value: impl Into<Value>) -> CallEvents {
        let mut events = self.clone();
        Arc::make_mut(&mut events.fields).set_field(name.into(), value.into());
        events
    }

    /// Writes an event about another server: a connection, a changed offer, a question.
    pub fn write_upstream(&self, event: &'static str, facts: Map<String, Value>) -> Result<()> {
        self.write_event(event, facts)
    }

    /// Writes the decision about a program that a run wanted to start.
    pub fn write_exec(&self, decision: Map<String, Value>) -> Result<()> {
        self.write_event("exec", decision)
    }

    /// Writes how a run ended that continued after its call.
    pub fn write_run_stop(&self, facts: Map<String, Value>) -> Result<()> {
        self.write_event("run.stop", facts)
    }

    /// Writes a decision of a run's proxy.
    pub fn write_network(&self, decision: Map<String, Value>) -> Result<()> {
        self.write_event("network", decision)
    }

    fn write_event<N: Into<Cow<'static, str>>>(
        &self,
        event: &'static str,
        facts: impl IntoIterator<Item = (N, Value)>,
    ) -> Result<()> {
        let mut fields = EventFields::clone(&self.fields);
        facts.into_iter().for_each(|(name, value)| fields.set_field(name.into(), value));
        self.audit.write_members(event, RecordMembers::redacted(fields.iter()))
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if !self.finished {
            self.write_stop("aborted", &CallFacts::default(), None, None);
        }
    }
}

/// Returns the status to record. An error is never recorded as completed, whatever the facts say.
fn call_status(
    facts: &CallFacts,
    error: Option<&Error>,
    cause: Option<CancelCause>,
) -> &'static str {
    match (facts.status, error) {
        (Some(status), None) => status,
        (Some(status), Some(_)) if status != CallStatus::Completed => status,
        (_, Some(error)) => match error.kind() {
            Kind::Cancelled if cause == Some(CancelCause::Deadline) => CallStatus::TimedOut,
            Kind::Cancelled => CallStatus::Cancelled,
            Kind::DeadlineExceeded => CallStatus::TimedOut,
            Kind::Unauthenticated
            | Kind::PermissionDenied
            | Kind::ApprovalDenied
            | Kind::ApprovalExpired => CallStatus::Denied,
            _ => CallStatus::Failed,
        },
        (None, None) => match cause {
            None => CallStatus::Completed,
            Some(CancelCause::Deadline) => CallStatus::TimedOut,
            Some(_) => CallStatus::Cancelled,
        },
    }
    .name()
}
