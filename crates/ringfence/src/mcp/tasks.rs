//! Tasks (the extension `io.modelcontextprotocol/tasks` of 2026-07-28): calls that continue in the
//! background.
//!
//! A task is a run without an attached request. It is inspected, answered and cancelled by its id,
//! which is random and valid only for the principal that made the call.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::model::{CallToolResult, DetailedTask, JsonObject, Task, TaskPayload, TaskStatus};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::methods::tools_call::{is_protocol_error, questions};
use super::render;
use crate::base::call::{Output, Status};
use crate::base::caller::Event;
use crate::base::clock::now_utc;
use crate::base::ids::{hex, random};
use crate::base::{Cancel, Cause, Error, Kind, Result};
use crate::call::park::Held;
use crate::session::Principal;

/// How long a task can be inspected, from its start.
const LIFETIME: Duration = Duration::from_secs(3600);
const POLL_INTERVAL_MS: u64 = 500;
/// Largest number of tasks, which hold memory and perhaps processes.
const LIMIT: usize = 256;

/// All tasks of a server.
#[derive(Default)]
pub struct Tasks {
    kept: Arc<Mutex<HashMap<String, Kept>>>,
}

struct Kept {
    principal: Principal,
    cancel: Cancel,
    inbox: mpsc::Sender<Request>,
}

/// Request to the loop that follows a task.
enum Request {
    Look(oneshot::Sender<Result<DetailedTask>>),
    Answer(BTreeMap<String, Value>, oneshot::Sender<Result<()>>),
}

impl Tasks {
    /// Takes over a run that no request is attached to any more. The task can be inspected as soon
    /// as this returns.
    pub fn keep(&self, held: Held, principal: &Principal) -> Result<Task> {
        let now = now_utc();
        let lifetime_ms = u64::try_from(LIFETIME.as_millis()).unwrap_or(u64::MAX);
        let id = format!("t-{}", hex(&random::<16>()));
        let task = Task::new(id.clone(), TaskStatus::Working, now.clone(), now)
            .with_ttl_ms(lifetime_ms)
            .with_poll_interval_ms(POLL_INTERVAL_MS);
        let (requests, inbox) = mpsc::channel(1);
        {
            let mut kept = lock(&self.kept);
            if kept.len() >= LIMIT {
                held.run.cancel.cancel(Cause::Unanswered);
                return Err(Error::new(
                    Kind::ResourceExhausted,
                    "there are too many tasks already",
                ));
            }
            let cancel = held.run.cancel.clone();
            kept.insert(id.clone(), Kept { principal: principal.clone(), cancel, inbox: requests });
        }
        let kept = Arc::clone(&self.kept);
        let tended = Tended { held, task: task.clone(), ended: None };
        tokio::spawn(async move {
            tended.tend(inbox).await;
            lock(&kept).remove(&id);
        });
        Ok(task)
    }

    /// Returns the current state of a task.
    pub async fn look(&self, principal: &Principal, id: &str) -> Result<DetailedTask> {
        self.request(principal, id, Request::Look).await
    }

    /// Delivers answers to the questions of a task.
    pub async fn answer(
        &self,
        principal: &Principal,
        id: &str,
        answers: BTreeMap<String, Value>,
    ) -> Result<()> {
        self.request(principal, id, |done| Request::Answer(answers, done)).await
    }

    /// Cancels a task. Has no effect on one that has ended.
    pub fn cancel(&self, principal: &Principal, id: &str) -> Result<()> {
        let cancel = self.find(principal, id, |kept| kept.cancel.clone())?;
        cancel.cancel(Cause::Client);
        Ok(())
    }

    async fn request<T>(
        &self,
        principal: &Principal,
        id: &str,
        make: impl FnOnce(oneshot::Sender<Result<T>>) -> Request,
    ) -> Result<T> {
        let inbox = self.find(principal, id, |kept| kept.inbox.clone())?;
        let (done, answer) = oneshot::channel();
        inbox.send(make(done)).await.map_err(|_| unknown())?;
        answer.await.map_err(|_| unknown())?
    }

    fn find<T>(&self, principal: &Principal, id: &str, take: impl FnOnce(&Kept) -> T) -> Result<T> {
        // A task of another principal must look like a missing one.
        lock(&self.kept)
            .get(id)
            .filter(|kept| kept.principal == *principal)
            .map(take)
            .ok_or_else(unknown)
    }
}

fn unknown() -> Error {
    Error::invalid_arguments("there is no such task").reason("unknown_task").hint(
        "Use the taskId exactly as the call gave it; a task is forgotten when its ttlMs is over.",
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Tended {
    held: Held,
    task: Task,
    ended: Option<TaskPayload>,
}

impl Tended {
    /// Follows the run to its end and answers requests about it until its lifetime is over.
    async fn tend(mut self, mut inbox: mpsc::Receiver<Request>) {
        let over = tokio::time::sleep(LIFETIME);
        tokio::pin!(over);
        let mut speaks = true;
        loop {
            tokio::select! {
                // The end first, so that every inspection sees it; and a run that sends events
                // without pause must not prevent inspections.
                biased;
                result = &mut self.held.run.done, if self.ended.is_none() => {
                    let result = result.unwrap_or_else(|_| Err(Error::internal("the call ended without a result")));
                    self.ended = Some(self.end(result));
                    self.touch();
                }
                request = inbox.recv() => match request {
                    Some(Request::Look(to)) => { let _ = to.send(self.look()); }
                    Some(Request::Answer(answers, done)) => {
                        self.held.answer(answers);
                        self.touch();
                        let _ = done.send(Ok(()));
                    }
                    None => return,
                },
                event = self.held.run.events.recv(), if speaks => match event {
                    Some(event) => self.hear(event),
                    None => speaks = false,
                },
                () = &mut over => {
                    self.held.run.cancel.cancel(Cause::Unanswered);
                    return;
                }
            }
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Ask(questions) => self.held.ask(questions),
            Event::Progress { message, done, .. } => {
                self.task.status_message = Some(message);
                let _ = done.send(());
            }
            Event::Log { done, .. } | Event::Notify { done, .. } | Event::Detach(done) => {
                let _ = done.send(());
            }
        }
        self.touch();
    }

    fn touch(&mut self) {
        self.task.last_updated_at = now_utc();
    }

    fn look(&mut self) -> Result<DetailedTask> {
        self.held.drop_settled();
        let payload = match &self.ended {
            Some(ended) => ended.clone(),
            None if self.held.open.is_empty() => TaskPayload::Working,
            None => TaskPayload::InputRequired { input_requests: questions(&self.held)? },
        };
        Ok(DetailedTask::new(self.task.clone(), payload))
    }

    /// Returns the final state. A tool that failed has completed, with an error a model can read;
    /// `failed` means an error of the server.
    fn end(&self, result: Result<Output>) -> TaskPayload {
        let trace_id = &self.held.run.trace_id;
        match result {
            Ok(output) if output.facts.status == Some(Status::Cancelled) => TaskPayload::Cancelled,
            Ok(output) => completed(&render::result(output, trace_id)),
            Err(error) if error.kind() == Kind::Cancelled => TaskPayload::Cancelled,
            Err(error) if error.kind() == Kind::Internal || is_protocol_error(&error, true) => {
                TaskPayload::Failed { error: object(&render::error_data(&error, trace_id)) }
            }
            Err(error) => completed(&render::failure(&error, trace_id)),
        }
    }
}

fn completed(result: &CallToolResult) -> TaskPayload {
    TaskPayload::Completed { result: object(result) }
}

fn object(value: &impl Serialize) -> JsonObject {
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
    use crate::base::caller::Abilities;
    use crate::call::CallRequest;
    use crate::config::scratch::Scratch;
    use crate::mcp::Server;
    use crate::session::{Shape, View};

    fn server(scratch: &Scratch) -> Arc<Server> {
        let plain = crate::mcp::server::tests::server(scratch);
        let mut config = crate::config::Config::clone(&plain.config);
        config.conformance_fixtures = true;
        drop(plain);
        Server::new(config).unwrap()
    }

    /// Starts a fixture and keeps it once it wants to go on in the background.
    async fn keep(server: &Server, tool: &str, arguments: Value) -> String {
        let session = server.connect(Principal::local(), "test").unwrap().session;
        let request = CallRequest {
            shape: Shape::default(),
            trace_id: TraceId::mint(),
            tool: tool.to_owned(),
            arguments: arguments.as_object().unwrap().clone(),
            view: View { session, lasting: true },
            abilities: Abilities { elicitation: true, tasks: true, ..Abilities::default() },
            narrowing: None,
            timeout: None,
            patience: None,
            protocol: String::new(),
            client: String::new(),
            budget: 1000,
        };
        let mut held = Held::new(server.pipeline.start(request));
        let Some(Event::Detach(done)) = held.run.events.recv().await else {
            panic!("it stays attached")
        };
        done.send(()).unwrap();
        server.tasks.keep(held, &Principal::local()).unwrap().task_id
    }

    /// Looks until it is so, as a client would.
    async fn until(server: &Server, id: &str, status: TaskStatus) -> TaskPayload {
        let looking = async {
            loop {
                let task = server.tasks.look(&Principal::local(), id).await.unwrap();
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
        let other = Principal::named("mallory");
        for refused in [
            server.tasks.look(&other, &id).await.map(|_| ()),
            server.tasks.answer(&other, &id, answer()).await,
            server.tasks.cancel(&other, &id),
            server.tasks.cancel(&Principal::local(), "t-unknown"),
        ] {
            assert_eq!(refused.unwrap_err().reason_name(), Some("unknown_task"));
        }
        server.tasks.answer(&Principal::local(), &id, answer()).await.unwrap();
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
        server.tasks.cancel(&Principal::local(), &slow).unwrap();
        assert_eq!(until(&server, &slow, TaskStatus::Cancelled).await, TaskPayload::Cancelled);
        server.tasks.cancel(&Principal::local(), &slow).unwrap();
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
