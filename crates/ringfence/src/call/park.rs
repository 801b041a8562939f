//! Parked calls. On 2026-07-28 a client cannot be asked in mid-call: the request ends with
//! `input_required` and sealed state, and the answer comes with the next request. Until then the
//! run is parked here: it stays alive, its questions stay open, and the retry resumes it. It is
//! never started a second time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::RunningCall;
use crate::base::IgnorePoison;
use crate::base::client_handle::{ClientEvent, ClientQuestion};
use crate::base::clock::unix_millis;
use crate::base::ids::short_id;
use crate::base::seal::Sealer;
use crate::base::{CancelCause, Error, Kind, Result};

/// Run with its open questions.
pub struct ResumableCall {
    pub run: RunningCall,
    pub open_questions: BTreeMap<String, ClientQuestion>,
    id: String,
    /// Number of times it was parked: state from an earlier round is used up.
    park_count: u64,
    question_count: u64,
    /// Names already used: each name identifies one question of a run.
    used_names: BTreeSet<&'static str>,
    /// Answers that came with the call itself.
    early_answers: BTreeMap<String, Value>,
}

/// Content of the sealed state. Only this server can read or create it.
#[derive(Serialize, Deserialize)]
struct SealedCallState {
    run: String,
    round: u64,
    digest: String,
    principal: String,
    expires_unix_ms: u64,
}

impl ResumableCall {
    /// Wraps a run that has no open questions.
    pub fn new(run: RunningCall) -> Self {
        ResumableCall {
            run,
            open_questions: BTreeMap::new(),
            id: short_id("r"),
            park_count: 0,
            question_count: 0,
            used_names: BTreeSet::new(),
            early_answers: BTreeMap::new(),
        }
    }

    /// Adds the answers that a client which knows a tool's questions by name sent along with the
    /// call. They apply only to questions with a name of their own: nothing can be approved before
    /// it is asked.
    pub fn with_early_answers(mut self, answers: BTreeMap<String, Value>) -> Self {
        self.early_answers = answers;
        self
    }

    /// Opens questions under the names by which the client answers them. Answers that came with the
    /// call are delivered immediately.
    pub fn add_questions(&mut self, questions: Vec<ClientQuestion>) {
        for question in questions {
            self.question_count += 1;
            let key = match question.key.filter(|key| self.used_names.insert(key)) {
                Some(key) => match self.early_answers.remove(key) {
                    Some(answer @ Value::Object(_)) => {
                        let _ = question.reply.send(Ok(answer));
                        continue;
                    }
                    _ => key.to_owned(),
                },
                None => format!("q{}", self.question_count),
            };
            self.open_questions.insert(key, question);
        }
    }

    /// Delivers the client's answers to the askers. Ignores answers that match no question, and
    /// values that cannot be an answer: their question stays open and is asked again.
    pub fn deliver_answers(&mut self, answers: BTreeMap<String, Value>) {
        for (key, answer) in answers.into_iter().filter(|(_, answer)| answer.is_object()) {
            if let Some(question) = self.open_questions.remove(&key) {
                // The asker may have been answered elsewhere or have given up; ignore the error.
                let _ = question.reply.send(Ok(answer));
            }
        }
    }

    /// Removes questions that have been answered elsewhere (at the terminal) or have expired.
    pub fn drop_closed_questions(&mut self) {
        self.open_questions.retain(|_, question| !question.reply.is_closed());
    }
}

type CallHandover = oneshot::Sender<ResumableCall>;

/// Entry for one parked run: its principal, and where to request the run.
#[derive(Clone)]
struct ParkedCall {
    principal: String,
    handover: mpsc::Sender<CallHandover>,
}

/// All parked runs, and the key that seals their state.
pub struct ParkedCalls {
    runs: Arc<Mutex<HashMap<String, ParkedCall>>>,
    sealer: Sealer,
}

impl ParkedCalls {
    /// Parked runs hold memory and perhaps processes, so their number is bounded. The bound per
    /// principal keeps one principal from taking the places of the others.
    const MAX_CALLS: usize = 1024;
    const MAX_PER_PRINCIPAL: usize = 64;

    /// Creates an empty store with a new key.
    pub fn new() -> Result<Self> {
        Ok(ParkedCalls { runs: Arc::default(), sealer: Sealer::new()? })
    }

    /// Parks a run and returns the sealed state that resumes it, once.
    pub fn park_call(&self, mut call: ResumableCall) -> Result<String> {
        call.park_count += 1;
        let state = SealedCallState {
            run: call.id.clone(),
            round: call.park_count,
            digest: call.run.digest.clone(),
            principal: call.run.principal.clone(),
            expires_unix_ms: unix_millis()
                + u64::try_from(call.run.expiry.as_millis()).unwrap_or(u64::MAX),
        };
        let sealed = self.sealer.seal(&seal_purpose(&call.run.principal), &state)?;
        let (handover, inbox) = mpsc::channel(1);
        {
            let mut runs = self.lock();
            let principal_count =
                runs.values().filter(|parked| parked.principal == call.run.principal).count();
            if runs.len() >= Self::MAX_CALLS || principal_count >= Self::MAX_PER_PRINCIPAL {
                call.run.cancel.cancel(CancelCause::Unanswered);
                return Err(Error::new(
                    Kind::ResourceExhausted,
                    "too many calls are already waiting for an answer",
                ));
            }
            runs.insert(
                call.id.clone(),
                ParkedCall { principal: call.run.principal.clone(), handover },
            );
        }
        tokio::spawn(attend_parked_call(call, inbox, Arc::clone(&self.runs)));
        Ok(sealed)
    }

    /// Resumes a parked run for a retry of the same call by the same principal.
    pub async fn resume_call(
        &self,
        sealed: &str,
        principal: &str,
        digest: &str,
    ) -> Result<ResumableCall> {
        let refusal_error = |reason, message: &str| {
            Error::invalid_arguments(message).with_reason(reason).with_hint(
                "Send back the requestState of the latest input_required result, once, with the same call; or call again without it.",
            )
        };
        let state: SealedCallState =
            self.sealer.open(&seal_purpose(principal), sealed).ok_or_else(|| {
                refusal_error("bad_state", "this requestState was not issued by this server")
            })?;
        if state.expires_unix_ms < unix_millis() {
            return Err(refusal_error("expired_state", "this requestState has expired"));
        }
        if state.digest != digest || state.principal != principal {
            return Err(refusal_error("other_call", "this requestState belongs to another call"));
        }
        let used_error = || refusal_error("used_state", "this requestState has been used already");
        let handover = self.lock().get(&state.run).cloned().ok_or_else(used_error)?.handover;
        let (call_sender, call) = oneshot::channel();
        handover.send(call_sender).await.map_err(|_| used_error())?;
        let call = call.await.map_err(|_| used_error())?;
        if call.park_count != state.round {
            // Old state for a run that is parked again: put the run back untouched, its own state
            // is still valid.
            let (next_handover, inbox) = mpsc::channel(1);
            let parked =
                ParkedCall { principal: call.run.principal.clone(), handover: next_handover };
            self.lock().insert(call.id.clone(), parked);
            tokio::spawn(attend_parked_call(call, inbox, Arc::clone(&self.runs)));
            return Err(used_error());
        }
        Ok(call)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, ParkedCall>> {
        self.runs.lock().ignore_poison()
    }
}

fn seal_purpose(principal: &str) -> String {
    format!("parked call of {principal}")
}

/// Attends to a parked run: collects new questions, discards progress, and lets unanswered
/// questions expire.
async fn attend_parked_call(
    mut call: ResumableCall,
    mut inbox: mpsc::Receiver<CallHandover>,
    runs: Arc<Mutex<HashMap<String, ParkedCall>>>,
) {
    let (expiry, grace) = (call.run.expiry, call.run.grace);
    let unpark = |id: &str| runs.lock().ignore_poison().remove(id);
    let expired = tokio::time::sleep(expiry);
    tokio::pin!(expired);
    let (mut events_open, mut handover_open) = (true, true);
    loop {
        tokio::select! {
            call_sender = inbox.recv(), if handover_open => {
                unpark(&call.id);
                let Some(call_sender) = call_sender else { handover_open = false; continue };
                match call_sender.send(call) {
                    Ok(()) => return,
                    // The request that wanted the run is gone, and its state cannot be used a
                    // second time.
                    Err(returned_call) => call = returned_call,
                }
            }
            event = call.run.events.recv(), if events_open => match event {
                Some(ClientEvent::Ask(questions)) => call.add_questions(questions),
                Some(ClientEvent::Progress { .. } | ClientEvent::Log { .. } | ClientEvent::Notify { .. } | ClientEvent::Detach(_)) => {}
                None => events_open = false,
            },
            () = &mut expired => {
                unpark(&call.id);
                for (_, question) in std::mem::take(&mut call.open_questions) {
                    // Tell the asker that there was no answer, which is not the same as a denial.
                    let _ = question.reply.send(Err(Error::new(Kind::ApprovalExpired, "no answer arrived in time")));
                }
                // A run that can do without the answer may still finish.
                let _ = tokio::time::timeout(grace, &mut call.run.done).await;
                call.run.cancel.cancel(CancelCause::Unanswered);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::time::Duration;

    use super::*;
    use crate::base::client_handle::{ClientCapabilities, ClientHandle};
    use crate::base::workspace::Workspace;
    use crate::base::{CancelToken, TraceId};
    use crate::call::{CallRequest, Pipeline};
    use crate::config::scratch::Scratch;
    use crate::config::{ConfigFlags, ProcessEnv, resolve_config};
    use crate::session::Overrides;
    use crate::session::{Principal, Session};
    use crate::tools::{SessionRef, SessionState};

    type Asked = oneshot::Receiver<Result<Value>>;

    fn question(key: Option<&'static str>) -> (ClientQuestion, Asked) {
        let (reply, answer) = oneshot::channel();
        (ClientQuestion { key, method: "elicitation/create", params: json!({}), reply }, answer)
    }

    fn held() -> (ResumableCall, ClientHandle) {
        let (speaker, events) = ClientHandle::new(ClientCapabilities::default());
        let run = RunningCall {
            trace_id: TraceId::generate(),
            events,
            done: oneshot::channel().1,
            cancel: CancelToken::new(),
            digest: String::new(),
            principal: "local".to_owned(),
            expiry: Duration::from_secs(1),
            grace: Duration::from_secs(1),
        };
        (ResumableCall::new(run), speaker)
    }

    fn answers(value: Value) -> BTreeMap<String, Value> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_a_question_with_a_name_can_be_answered_before_it_is_asked() {
        let accept = json!({"action": "accept"});
        let (held, _speaker) = held();
        let mut held =
            held.with_early_answers(answers(json!({"q2": accept, "name": accept, "number": 5})));
        let (named, mut told) = question(Some("name"));
        let (approval, mut unasked) = question(None);
        let (number, _) = question(Some("number"));
        held.add_questions(vec![named, approval, number]);
        assert_eq!(told.try_recv().unwrap().unwrap(), accept);
        assert!(unasked.try_recv().is_err(), "an approval was answered before it was asked");
        assert_eq!(held.open_questions.keys().collect::<Vec<_>>(), ["number", "q2"]);
        let (again, mut used) = question(Some("name"));
        held.add_questions(vec![again]);
        assert!(used.try_recv().is_err(), "one answer counts once");
    }

    #[test]
    fn what_is_no_answer_leaves_its_question_open() {
        let (mut held, _speaker) = held();
        let (asked, mut answer) = question(Some("name"));
        held.add_questions(vec![asked]);
        held.deliver_answers(answers(json!({"name": 5, "other": {"action": "accept"}})));
        assert!(held.open_questions.contains_key("name") && answer.try_recv().is_err());
        held.deliver_answers(answers(json!({"name": {"action": "decline"}})));
        assert_eq!(answer.try_recv().unwrap().unwrap(), json!({"action": "decline"}));
    }

    fn pipeline(scratch: &Scratch) -> Arc<Pipeline> {
        let flags = ConfigFlags {
            root: Some(scratch.dir("root")),
            workspace: Some(scratch.dir("workspace")),
            conformance_fixtures: true,
            ..ConfigFlags::default()
        };
        let env = ProcessEnv::new([("HOME", scratch.dir("home"))], "/");
        Arc::new(Pipeline::new(Arc::new(resolve_config(&flags, &env).unwrap()), None).unwrap())
    }

    fn request(scratch: &Scratch, tool: &str) -> CallRequest {
        let workspace = Arc::new(Workspace::open(&scratch.dir("workspace"), &[]).unwrap());
        let session = Session::new(
            Principal::local(),
            "test",
            workspace,
            &scratch.dir("root"),
            CancelToken::new(),
        );
        CallRequest {
            overrides: Overrides::default(),
            trace_id: TraceId::generate(),
            tool: tool.to_owned(),
            arguments: serde_json::Map::new(),
            session_ref: SessionRef {
                state: Arc::new(SessionState::new(Arc::new(session))),
                persistent: true,
            },
            client_capabilities: ClientCapabilities {
                elicitation: true,
                ..ClientCapabilities::default()
            },
            client_sandbox: None,
            timeout: None,
            response_timeout: None,
            protocol: String::new(),
            client: String::new(),
            output_budget: 1000,
        }
    }

    async fn until_it_asks(held: &mut ResumableCall) {
        let Some(ClientEvent::Ask(questions)) = held.run.events.recv().await else {
            panic!("it does not ask")
        };
        held.add_questions(questions);
    }

    #[tokio::test]
    async fn a_run_that_is_parked_twice_runs_once() {
        let scratch = Scratch::new();
        let pipeline = pipeline(&scratch);
        let mut held =
            ResumableCall::new(pipeline.start_call(request(&scratch, "test_asks_twice")));
        let digest = held.run.digest.clone();
        let mut states = Vec::new();
        for action in ["accept", "decline"] {
            until_it_asks(&mut held).await;
            let key = held.open_questions.keys().next().unwrap().clone();
            let state = pipeline.parked.park_call(held).unwrap();
            held = pipeline.parked.resume_call(&state, "local", &digest).await.unwrap();
            held.deliver_answers(answers(json!({key: {"action": action}})));
            states.push(state);
        }
        let output = held.run.done.await.unwrap().unwrap();
        let structured = output.structured.unwrap();
        let said: Vec<_> = [0, 1]
            .iter()
            .map(|at| structured["answers"][*at]["answer"].as_str().unwrap())
            .collect();
        assert_eq!(said, ["approved", "approval_denied"]);
        let log = std::fs::read_to_string(scratch.dir("workspace").join("asks_twice.log")).unwrap();
        assert_eq!(log, "first\nsecond\n");
        for used in states {
            let refused = pipeline.parked.resume_call(&used, "local", &digest).await.err().unwrap();
            assert_eq!(refused.reason_name(), Some("used_state"));
        }
    }
}
