//! One call of a tool, on a server of either era.
//!
//! A server with sessions asks in mid-call (`elicitation/create`); a server of 2026-07-28 answers
//! with `input_required`, and the same call is sent again with the answers. The handler of the call
//! sees the same questions in both cases. While it answers, the clock of the call stands still.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::connection::Connection;
use crate::connection::inbox::{CallEvent, CallInbox, ServerRequest};
use crate::error::{ClientError, ErrorKind, Result, closed_by_us, too_long};
use crate::handshake::{ClientProfile, Era};
use crate::limits::Limits;
use crate::message::{METHOD_NOT_FOUND, RawJson, Reply};
use crate::pages::RequiredPages;

/// Call of a tool.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// Name of the tool on its server.
    pub tool: String,
    pub arguments: Map<String, Value>,
    /// Time for the call, while no one is being asked; the default of the limits if absent.
    pub timeout: Option<Duration>,
    /// The tool changes nothing, so that the call may be repeated if its connection is lost.
    pub is_read_only: bool,
    /// The tool only runs as a task ([`ToolDefinition::requires_task`]); the call waits for it.
    ///
    /// [`ToolDefinition::requires_task`]: crate::ToolDefinition::requires_task
    pub runs_as_task: bool,
    /// Number of the connection that the call is for ([`ServerClient::connection_count`]): it is not
    /// sent on a later one, whose server may offer something else. Any connection if absent.
    ///
    /// [`ServerClient::connection_count`]: crate::ServerClient::connection_count
    pub connection: Option<u64>,
    /// The caller makes the call again because its first connection was lost: a server that ends
    /// once more has failed once, not twice.
    pub is_repeated: bool,
}

/// Question of a server.
#[derive(Debug, Clone)]
pub struct Question {
    /// `elicitation/create` or `sampling/createMessage`.
    pub method: String,
    pub params: Value,
}

/// Answer to a question.
#[derive(Debug, Clone)]
pub enum QuestionAnswer {
    /// Result of the request.
    Result(Value),
    /// There is no one who could answer.
    NoOne,
}

/// Receives what a server says during a call, and answers its questions.
pub trait CallHandler: Send + Sync {
    /// Answers questions, one answer for each, in their order.
    fn answer_questions(&self, questions: Vec<Question>) -> BoxFuture<'_, Vec<QuestionAnswer>>;

    /// Receives the parameters of `notifications/progress`. Must not block.
    fn handle_progress(&self, params: &RawJson) {
        let _ = params;
    }

    /// Returns the lowest level of log lines that the call wants, such as `info`. A server of
    /// 2026-07-28 sends none without it.
    fn log_level(&self) -> Option<&str> {
        None
    }

    /// Receives the parameters of `notifications/message`. Must not block.
    fn handle_log(&self, params: &RawJson) {
        let _ = params;
    }
}

/// Handler of a call that no one watches.
pub struct UnattendedCall;

impl CallHandler for UnattendedCall {
    fn answer_questions(&self, questions: Vec<Question>) -> BoxFuture<'_, Vec<QuestionAnswer>> {
        Box::pin(async move { questions.iter().map(|_| QuestionAnswer::NoOne).collect() })
    }
}

/// Everything that one call needs.
pub(crate) struct CallRun<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) era: Era,
    pub(crate) profile: &'a ClientProfile,
    pub(crate) limits: &'a Limits,
    pub(crate) handler: &'a dyn CallHandler,
    /// Headers of the call, for HTTP.
    pub(crate) headers: HeaderMap,
    /// Time that is left.
    pub(crate) remaining: Duration,
    /// Places of calls in flight.
    pub(crate) places: &'a Semaphore,
    /// The call's own place. It has none while someone is being asked: a human who takes long must
    /// not keep other calls waiting.
    pub(crate) place: Option<SemaphorePermit<'a>>,
    /// Rounds of questions so far.
    pub(crate) rounds: usize,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ResultHead<'a> {
    #[serde(borrow)]
    result_type: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct InputRequired {
    input_requests: Map<String, Value>,
    request_state: Option<Value>,
}

/// Answers to the questions of one round.
struct InputRound {
    responses: Map<String, Value>,
    request_state: Option<Value>,
}

impl<'a> CallRun<'a> {
    /// Runs the call to its result, through as many rounds of questions as are allowed.
    pub(crate) async fn run(&mut self, call: &ToolCall) -> Result<RawJson> {
        let (mut input, mut opened_pages) = (None, BTreeSet::new());
        loop {
            let result = match self.run_round(call, input.as_ref()).await {
                Err(error) if self.era == Era::Initialized => {
                    self.open_pages(error, &mut opened_pages).await?;
                    continue;
                }
                result => result?,
            };
            match (self.era, call.runs_as_task) {
                (Era::Initialized, true) => return self.follow_task(&result).await,
                (Era::Initialized, false) => return Ok(result),
                (Era::Stateless, _) => {}
            }
            let head: ResultHead<'_> = result.parse().unwrap_or_default();
            if head.result_type.as_deref() != Some("input_required") {
                return Ok(result);
            }
            // The questions are parsed, which takes many times their size.
            if result.get().len() > self.limits.question_bytes {
                return Err(too_long(self.limits.question_bytes));
            }
            input = Some(self.answer_round(result.parse()?).await?);
        }
    }

    /// Counts a round of questions. Fails if there were as many as are allowed.
    fn count_round(&mut self) -> Result<()> {
        let allowed = self.limits.input_rounds;
        self.rounds += 1;
        match self.rounds > allowed {
            false => Ok(()),
            true => Err(ClientError::new(
                ErrorKind::BadResponse,
                format!("the server asked more than {allowed} times in one call"),
            )),
        }
    }

    /// Puts a round of questions to the handler.
    async fn ask_handler(&mut self, questions: Vec<Question>) -> Result<Vec<QuestionAnswer>> {
        self.count_round()?;
        self.place = None;
        let answers = self.handler.answer_questions(questions).await;
        self.place = Some(take_place(self.places).await?);
        Ok(answers)
    }

    /// Has the user open the pages that a call needs. Fails with the error of the call if it asks for
    /// none, or if the user does not open them.
    async fn open_pages(
        &mut self,
        error: ClientError,
        opened: &mut BTreeSet<String>,
    ) -> Result<()> {
        let Some(pages) = RequiredPages::from_error(&error, self.limits) else { return Err(error) };
        if pages.were_opened(opened) {
            return Err(pages.describe_in(error));
        }
        let answers = self.ask_handler(pages.to_questions()).await?;
        let is_accepted = |answer: &QuestionAnswer| match answer {
            QuestionAnswer::Result(result) => result["action"] == "accept",
            QuestionAnswer::NoOne => false,
        };
        match answers.iter().all(is_accepted) {
            true => Ok(()),
            false => Err(pages.describe_in(error)),
        }
    }

    /// Sends the call once and follows it to its answer.
    async fn run_round(&mut self, call: &ToolCall, input: Option<&InputRound>) -> Result<RawJson> {
        let (era, profile, log_level) = (self.era, self.profile, self.handler.log_level());
        let time = self.remaining;
        let params = move |id| {
            let mut params = call_params(call, id, era, profile, log_level, input);
            if call.runs_as_task && era == Era::Initialized {
                let ttl = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                params["task"] = json!({"ttl": ttl});
            }
            params
        };
        self.run_request("tools/call", params).await
    }

    /// Waits for the result of the task that a call has become.
    async fn follow_task(&mut self, created: &RawJson) -> Result<RawJson> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct CreatedTask {
            task_id: String,
        }
        #[derive(Deserialize)]
        struct TaskAnswer {
            task: CreatedTask,
        }
        let TaskAnswer { task } = created.parse()?;
        let connection = self.connection;
        let mut guard = TaskCancelGuard { connection, task_id: task.task_id, is_armed: true };
        let params = json!({"taskId": guard.task_id});
        // The server answers when the task has ended.
        let result = self.run_request("tasks/result", move |_| params).await;
        guard.is_armed = result.is_err();
        result
    }

    /// Sends a request of the call and follows it to its answer.
    async fn run_request(
        &mut self,
        method: &str,
        params: impl FnOnce(u64) -> Value,
    ) -> Result<RawJson> {
        let (connection, handler, places) = (self.connection, self.handler, self.places);
        let inbox = Arc::new(CallInbox::new(self.limits));
        let headers = self.headers.clone();
        let answer = connection.call(method, Some(&headers), params, &inbox);
        tokio::pin!(answer);
        // The question that the handler is answering. It is dropped if the call ends before that.
        let mut question: Option<BoxFuture<'a, Result<SemaphorePermit<'a>>>> = None;
        loop {
            if self.remaining.is_zero() {
                return Err(call_expired());
            }
            let (started, is_asking) = (Instant::now(), question.is_some());
            let event = tokio::select! {
                biased;
                replied = poll_question(&mut question) => {
                    question = None;
                    self.place = Some(replied?);
                    continue;
                }
                event = inbox.next_event(), if !is_asking => event,
                answer = &mut answer => {
                    // The answer may overtake what was said before it.
                    while let Some(event) = inbox.take_event() {
                        handle_late_event(handler, event);
                    }
                    self.remaining = match is_asking {
                        true => self.remaining,
                        false => self.remaining.saturating_sub(started.elapsed()),
                    };
                    return answer;
                }
                () = tokio::time::sleep(self.remaining), if !is_asking => {
                    self.remaining = Duration::ZERO;
                    continue;
                }
            };
            self.remaining = self.remaining.saturating_sub(started.elapsed());
            match event {
                CallEvent::Progress(params) => handler.handle_progress(&params),
                CallEvent::Log(params) => handler.handle_log(&params),
                CallEvent::Request(request) => {
                    self.count_round()?;
                    self.place = None;
                    let reply_timeout = self.remaining;
                    question = Some(Box::pin(async move {
                        let reply = answer_request(handler, &request).await;
                        let place = take_place(places).await?;
                        let sending = connection.reply(&request.id, &reply);
                        tokio::time::timeout(reply_timeout, sending)
                            .await
                            .map_err(|_| call_expired())?
                            // The call has begun to run, so that it must not be repeated.
                            .map_err(ClientError::without_cause)?;
                        Ok(place)
                    }));
                }
            }
        }
    }

    /// Answers the questions of an `input_required`.
    async fn answer_round(&mut self, head: InputRequired) -> Result<InputRound> {
        if head.input_requests.len() > self.limits.server_requests {
            return Err(ClientError::new(
                ErrorKind::TooLarge,
                "the server asks too many questions at once",
            ));
        }
        let (keys, questions): (Vec<String>, Vec<Question>) = head
            .input_requests
            .into_iter()
            .map(|(key, mut request)| {
                let method = request["method"].as_str().unwrap_or_default().to_owned();
                // The server may send anything here; indexing what is not an object would panic.
                let params = request.get_mut("params").map(Value::take).unwrap_or_default();
                (key, Question { method, params })
            })
            .unzip();
        let methods: Vec<String> =
            questions.iter().map(|question| question.method.clone()).collect();
        let mut answers = self.ask_handler(questions).await?.into_iter();
        let mut responses = Map::new();
        for (key, method) in keys.into_iter().zip(methods) {
            let response = match (answers.next(), method.as_str()) {
                (Some(QuestionAnswer::Result(result)), _) => result,
                (_, "elicitation/create") => json!({"action": "cancel"}),
                (_, "roots/list") => json!({"roots": []}),
                _ => {
                    return Err(ClientError::new(
                        ErrorKind::BadResponse,
                        "the server asks for something that no one here answers",
                    ));
                }
            };
            responses.insert(key, response);
        }
        Ok(InputRound { responses, request_state: head.request_state })
    }
}

/// Cancels a task whose result no one waits for any more.
struct TaskCancelGuard<'a> {
    connection: &'a Connection,
    task_id: String,
    is_armed: bool,
}

impl Drop for TaskCancelGuard<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            let params = json!({"taskId": self.task_id});
            self.connection.request_in_background("tasks/cancel", params);
        }
    }
}

/// Waits for a place among the calls in flight.
pub(crate) async fn take_place(places: &Semaphore) -> Result<SemaphorePermit<'_>> {
    places.acquire().await.map_err(|_| closed_by_us())
}

fn call_expired() -> ClientError {
    ClientError::new(ErrorKind::DeadlineExceeded, "the server did not answer the call in time")
}

/// Waits for the open question, or without end if there is none.
async fn poll_question<'a>(
    question: &mut Option<BoxFuture<'a, Result<SemaphorePermit<'a>>>>,
) -> Result<SemaphorePermit<'a>> {
    match question {
        Some(question) => question.await,
        None => std::future::pending().await,
    }
}

fn handle_late_event(handler: &dyn CallHandler, event: CallEvent) {
    match event {
        CallEvent::Progress(params) => handler.handle_progress(&params),
        CallEvent::Log(params) => handler.handle_log(&params),
        // The call is over: its question needs no answer.
        CallEvent::Request(_) => {}
    }
}

/// Answers a question that came in mid-call.
async fn answer_request(handler: &dyn CallHandler, request: &ServerRequest) -> Reply {
    let params = request.params.as_ref().and_then(|params| params.parse().ok());
    let question = Question { method: request.method.clone(), params: params.unwrap_or(json!({})) };
    let is_elicitation = question.method == "elicitation/create";
    match (handler.answer_questions(vec![question]).await.pop(), is_elicitation) {
        (Some(QuestionAnswer::Result(result)), _) => Reply::Result(result),
        (_, true) => Reply::Result(json!({"action": "cancel"})),
        (_, false) => Reply::Error { code: METHOD_NOT_FOUND, message: "no one answers this" },
    }
}

fn call_params(
    call: &ToolCall,
    id: u64,
    era: Era,
    profile: &ClientProfile,
    log_level: Option<&str>,
    input: Option<&InputRound>,
) -> Value {
    let mut meta = match era {
        Era::Stateless => profile.request_meta(),
        Era::Initialized => Map::new(),
    };
    meta.insert("progressToken".to_owned(), Value::from(id));
    if let (Era::Stateless, Some(level)) = (era, log_level) {
        meta.insert("io.modelcontextprotocol/logLevel".to_owned(), Value::from(level));
    }
    let mut params = json!({"name": call.tool, "arguments": call.arguments, "_meta": meta});
    if let Some(input) = input {
        params["inputResponses"] = Value::Object(input.responses.clone());
        if let Some(state) = &input.request_state {
            params["requestState"] = state.clone();
        }
    }
    params
}
