//! Tasks (the extension `io.modelcontextprotocol/tasks` of 2026-07-28): calls that continue in the
//! background.
//!
//! A task is a run without an attached request. It is inspected, answered and cancelled by its id,
//! which is random and valid only for the principal that made the call.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rmcp::model::{CallToolResult, DetailedTask, JsonObject, Task, TaskPayload, TaskStatus};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::methods::tools_call::{collect_questions, is_protocol_error};
use super::render;
use crate::base::IgnorePoison;
use crate::base::call::{CallStatus, ToolOutput};
use crate::base::client_handle::ClientEvent;
use crate::base::clock::now_utc;
use crate::base::ids::{random_bytes, to_hex};
use crate::base::{CancelCause, CancelToken, Error, Kind, Result};
use crate::call::park::ResumableCall;
use crate::session::Principal;

/// How long a task can be inspected, from its start.
const TASK_LIFETIME: Duration = Duration::from_secs(3600);
const POLL_INTERVAL_MS: u64 = 500;
/// Largest number of tasks, which hold memory and perhaps processes.
const MAX_TASKS: usize = 256;

/// All tasks of a server.
#[derive(Default)]
pub struct BackgroundTasks {
    entries: Arc<Mutex<HashMap<String, TaskEntry>>>,
}

struct TaskEntry {
    principal: Principal,
    cancel: CancelToken,
    inbox: mpsc::Sender<TaskRequest>,
}

/// Request to the loop that follows a task.
enum TaskRequest {
    Inspect(oneshot::Sender<Result<DetailedTask>>),
    Answer(BTreeMap<String, Value>, oneshot::Sender<Result<()>>),
}

impl BackgroundTasks {
    /// Takes over a run that no request is attached to any more. The task can be inspected as soon
    /// as this returns.
    pub fn add_task(&self, call: ResumableCall, principal: &Principal) -> Result<Task> {
        let now = now_utc();
        let lifetime_ms = u64::try_from(TASK_LIFETIME.as_millis()).unwrap_or(u64::MAX);
        let id = format!("t-{}", to_hex(&random_bytes::<16>()));
        let task = Task::new(id.clone(), TaskStatus::Working, now.clone(), now)
            .with_ttl_ms(lifetime_ms)
            .with_poll_interval_ms(POLL_INTERVAL_MS);
        let (requests, inbox) = mpsc::channel(1);
        {
            let mut entries = lock(&self.entries);
            if entries.len() >= MAX_TASKS {
                call.run.cancel.cancel(CancelCause::Unanswered);
                return Err(Error::new(
                    Kind::ResourceExhausted,
                    "there are too many tasks already",
                ));
            }
            let cancel = call.run.cancel.clone();
            entries.insert(
                id.clone(),
                TaskEntry { principal: principal.clone(), cancel, inbox: requests },
            );
        }
        let entries = Arc::clone(&self.entries);
        let attended = AttendedTask { call, task: task.clone(), payload: None };
        tokio::spawn(async move {
            attended.attend_run(inbox).await;
            lock(&entries).remove(&id);
        });
        Ok(task)
    }

    /// Returns the current state of a task.
    pub async fn inspect_task(&self, principal: &Principal, id: &str) -> Result<DetailedTask> {
        self.send_request(principal, id, TaskRequest::Inspect).await
    }

    /// Delivers answers to the questions of a task.
    pub async fn answer_task(
        &self,
        principal: &Principal,
        id: &str,
        answers: BTreeMap<String, Value>,
    ) -> Result<()> {
        self.send_request(principal, id, |reply| TaskRequest::Answer(answers, reply)).await
    }

    /// Cancels a task. Has no effect on one that has ended.
    pub fn cancel_task(&self, principal: &Principal, id: &str) -> Result<()> {
        let cancel = self.find_task(principal, id, |entry| entry.cancel.clone())?;
        cancel.cancel(CancelCause::Client);
        Ok(())
    }

    async fn send_request<T>(
        &self,
        principal: &Principal,
        id: &str,
        make_request: impl FnOnce(oneshot::Sender<Result<T>>) -> TaskRequest,
    ) -> Result<T> {
        let inbox = self.find_task(principal, id, |entry| entry.inbox.clone())?;
        let (reply, answer) = oneshot::channel();
        inbox.send(make_request(reply)).await.map_err(|_| unknown_task_error())?;
        answer.await.map_err(|_| unknown_task_error())?
    }

    fn find_task<T>(
        &self,
        principal: &Principal,
        id: &str,
        read_entry: impl FnOnce(&TaskEntry) -> T,
    ) -> Result<T> {
        // A task of another principal must look like a missing one.
        lock(&self.entries)
            .get(id)
            .filter(|entry| entry.principal == *principal)
            .map(read_entry)
            .ok_or_else(unknown_task_error)
    }
}

fn unknown_task_error() -> Error {
    Error::invalid_arguments("there is no such task").with_reason("unknown_task").with_hint(
        "Use the taskId exactly as the call gave it; a task is forgotten when its ttlMs is over.",
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

struct AttendedTask {
    call: ResumableCall,
    task: Task,
    payload: Option<TaskPayload>,
}

impl AttendedTask {
    /// Follows the run to its end and answers requests about it until its lifetime is over.
    async fn attend_run(mut self, mut inbox: mpsc::Receiver<TaskRequest>) {
        let lifetime = tokio::time::sleep(TASK_LIFETIME);
        tokio::pin!(lifetime);
        let mut events_open = true;
        loop {
            tokio::select! {
                // The end first, so that every inspection sees it; and a run that sends events
                // without pause must not prevent inspections.
                biased;
                result = &mut self.call.run.done, if self.payload.is_none() => {
                    let result = result.unwrap_or_else(|_| Err(Error::internal("the call ended without a result")));
                    self.payload = Some(self.final_payload(result));
                    self.mark_updated();
                }
                request = inbox.recv() => match request {
                    Some(TaskRequest::Inspect(reply)) => { let _ = reply.send(self.describe_task()); }
                    Some(TaskRequest::Answer(answers, done)) => {
                        self.call.deliver_answers(answers);
                        self.mark_updated();
                        let _ = done.send(Ok(()));
                    }
                    None => return,
                },
                event = self.call.run.events.recv(), if events_open => match event {
                    Some(event) => self.handle_event(event),
                    None => events_open = false,
                },
                () = &mut lifetime => {
                    self.call.run.cancel.cancel(CancelCause::Unanswered);
                    return;
                }
            }
        }
    }

    fn handle_event(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Ask(questions) => self.call.add_questions(questions),
            ClientEvent::Progress { message, done, .. } => {
                self.task.status_message = Some(message);
                let _ = done.send(());
            }
            ClientEvent::Log { done, .. }
            | ClientEvent::Notify { done, .. }
            | ClientEvent::Detach(done) => {
                let _ = done.send(());
            }
        }
        self.mark_updated();
    }

    fn mark_updated(&mut self) {
        self.task.last_updated_at = now_utc();
    }

    fn describe_task(&mut self) -> Result<DetailedTask> {
        self.call.drop_closed_questions();
        let payload = match &self.payload {
            Some(finished) => finished.clone(),
            None if self.call.open_questions.is_empty() => TaskPayload::Working,
            None => TaskPayload::InputRequired { input_requests: collect_questions(&self.call)? },
        };
        Ok(DetailedTask::new(self.task.clone(), payload))
    }

    /// Returns the final state. A tool that failed has completed, with an error a model can read;
    /// `failed` means an error of the server.
    fn final_payload(&self, result: Result<ToolOutput>) -> TaskPayload {
        let trace_id = &self.call.run.trace_id;
        match result {
            Ok(output) if output.facts.status == Some(CallStatus::Cancelled) => {
                TaskPayload::Cancelled
            }
            Ok(output) => completed_payload(&render::tool_result(output, trace_id, true)),
            Err(error) if error.kind() == Kind::Cancelled => TaskPayload::Cancelled,
            Err(error) if error.kind() == Kind::Internal || is_protocol_error(&error, true) => {
                TaskPayload::Failed { error: to_json_object(&render::error_data(&error, trace_id)) }
            }
            Err(error) => completed_payload(&render::failure_result(&error, trace_id)),
        }
    }
}

fn completed_payload(result: &CallToolResult) -> TaskPayload {
    TaskPayload::Completed { result: to_json_object(result) }
}

fn to_json_object(value: &impl Serialize) -> JsonObject {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        other => {
            tracing::error!("the result of a task is not an object: {other:?}");
            JsonObject::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::TraceId;
    use crate::base::client_handle::ClientCapabilities;
    use crate::call::CallRequest;
    use crate::config::scratch::Scratch;
    use crate::mcp::Server;
    use crate::session::Overrides;
    use crate::tools::SessionRef;

    fn server(scratch: &Scratch) -> Arc<Server> {
        let plain = crate::mcp::server::tests::server(scratch);
        let mut config = crate::config::Config::clone(&plain.config);
        config.conformance_fixtures = true;
        drop(plain);
        Server::new(config).unwrap()
    }

    /// Starts a fixture and keeps it once it wants to go on in the background.
    async fn keep(server: &Server, tool: &str, arguments: Value) -> String {
        let state = server.connect_client(Principal::local(), "test").unwrap().state;
        let request = CallRequest {
            overrides: Overrides::default(),
            trace_id: TraceId::generate(),
            tool: tool.to_owned(),
            arguments: arguments.as_object().unwrap().clone(),
            session_ref: SessionRef { state, persistent: true },
            client_capabilities: ClientCapabilities {
                elicitation: true,
                tasks: true,
                ..ClientCapabilities::default()
            },
            client_sandbox: None,
            timeout: None,
            response_timeout: None,
            protocol: String::new(),
            client: String::new(),
            output_budget: 1000,
        };
        let mut held = ResumableCall::new(server.pipeline.start_call(request));
        let Some(ClientEvent::Detach(done)) = held.run.events.recv().await else {
            panic!("it stays attached")
        };
        done.send(()).unwrap();
        server.tasks.add_task(held, &Principal::local()).unwrap().task_id
    }

    /// Looks until it is so, as a client would.
    async fn until(server: &Server, id: &str, status: TaskStatus) -> TaskPayload {
        let looking = async {
            loop {
                let task = server.tasks.inspect_task(&Principal::local(), id).await.unwrap();
                if task.status() == status {
                    return task.payload;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), looking).await.unwrap()
    }

    #[tokio::test]
    async fn a_task_asks_is_answered_and_ends_and_is_nobody_elses() {
        let scratch = Scratch::new();
        let server = server(&scratch);
        let id = keep(&server, "confirm_delete", json!({"filename": "a.txt"})).await;
        let TaskPayload::InputRequired { input_requests } =
            until(&server, &id, TaskStatus::InputRequired).await
        else {
            unreachable!()
        };
        assert!(input_requests.contains_key("confirm"));
        let answer =
            || BTreeMap::from([("confirm".to_owned(), json!({"content": {"confirm": true}}))]);
        let other = Principal::from_name("mallory");
        for refused in [
            server.tasks.inspect_task(&other, &id).await.map(|_| ()),
            server.tasks.answer_task(&other, &id, answer()).await,
            server.tasks.cancel_task(&other, &id),
            server.tasks.cancel_task(&Principal::local(), "t-unknown"),
        ] {
            assert_eq!(refused.unwrap_err().reason_name(), Some("unknown_task"));
        }
        server.tasks.answer_task(&Principal::local(), &id, answer()).await.unwrap();
        let TaskPayload::Completed { result } = until(&server, &id, TaskStatus::Completed).await
        else {
            unreachable!()
        };
        assert_eq!(result["content"][0]["text"], "a.txt: confirmed = true");
    }

    #[tokio::test]
    async fn how_a_task_ends_says_who_failed() {
        let scratch = Scratch::new();
        let server = server(&scratch);
        let slow = keep(&server, "slow_compute", json!({"seconds": 60})).await;
        server.tasks.cancel_task(&Principal::local(), &slow).unwrap();
        assert_eq!(until(&server, &slow, TaskStatus::Cancelled).await, TaskPayload::Cancelled);
        server.tasks.cancel_task(&Principal::local(), &slow).unwrap();
        let broken = keep(&server, "protocol_error_job", json!({})).await;
        let TaskPayload::Failed { error } = until(&server, &broken, TaskStatus::Failed).await
        else {
            unreachable!()
        };
        assert_eq!(error["code"], -32603);
        let failing = keep(&server, "failing_job", json!({})).await;
        let TaskPayload::Completed { result } =
            until(&server, &failing, TaskStatus::Completed).await
        else {
            unreachable!()
        };
        assert_eq!(result["isError"], true);
    }
}
