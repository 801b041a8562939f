//! Questions of a server to the human or the model behind our client. Each names its server, so
//! that it cannot pass for our own.

mod params;

use ringfence_client::{Question, QuestionAnswer, clean_text};
use serde_json::{Map, Value, json};

use self::params::{QuestionFault, form_params, sampling_params, url_params};
use super::pool::escape_uri_path;
use crate::config::UpstreamServer;
use crate::tools::RunCx;

const ELICITATION: &str = "elicitation/create";
const SAMPLING: &str = "sampling/createMessage";
const ROOTS: &str = "roots/list";

/// Answers the questions of one round. The clock of the call stands still meanwhile.
pub async fn answer_questions(
    cx: &RunCx,
    server: &UpstreamServer,
    questions: Vec<Question>,
) -> Vec<QuestionAnswer> {
    let mut answers: Vec<Option<QuestionAnswer>> = Vec::with_capacity(questions.len());
    let mut asked = Vec::new();
    for question in questions {
        match plan_question(cx, server, question) {
            QuestionPlan::Answered(answer) => answers.push(Some(answer)),
            QuestionPlan::Ask(method, params) => {
                answers.push(None);
                asked.push((method, params));
            }
        }
    }
    let mut replies = ask_client(cx, server, asked).await.into_iter();
    let answers = answers.into_iter();
    answers
        .map(|answer| answer.or_else(|| replies.next()).unwrap_or(QuestionAnswer::NoOne))
        .collect()
}

enum QuestionPlan {
    /// No one needs to be asked, or no one can be.
    Answered(QuestionAnswer),
    Ask(&'static str, Value),
}

fn plan_question(cx: &RunCx, server: &UpstreamServer, question: Question) -> QuestionPlan {
    let capabilities = cx.control.client.capabilities();
    let is_url = question.params["mode"] == "url";
    let (method, params) = match question.method.as_str() {
        ROOTS => {
            return QuestionPlan::Answered(QuestionAnswer::Result(describe_roots(cx, server)));
        }
        ELICITATION if is_url && capabilities.elicitation_url => {
            (ELICITATION, url_params(&server.id, &question.params))
        }
        ELICITATION if !is_url && capabilities.elicitation => {
            (ELICITATION, form_params(&server.id, question.params))
        }
        SAMPLING if server.allows_sampling && capabilities.sampling => {
            (SAMPLING, sampling_params(&server.id, question.params))
        }
        _ => return QuestionPlan::Answered(QuestionAnswer::NoOne),
    };
    match params {
        Ok(params) => QuestionPlan::Ask(method, params),
        Err(fault) => {
            record_refusal(cx, server, method, fault);
            QuestionPlan::Answered(QuestionAnswer::NoOne)
        }
    }
}

/// Only a server in our sandbox learns where the workspace is.
fn describe_roots(cx: &RunCx, server: &UpstreamServer) -> Value {
    match server.is_stdio() {
        true => {
            let path = escape_uri_path(cx.settings.workspace.path());
            json!({"roots": [{"uri": format!("file://{path}"), "name": "workspace"}]})
        }
        false => json!({"roots": []}),
    }
}

async fn ask_client(
    cx: &RunCx,
    server: &UpstreamServer,
    questions: Vec<(&'static str, Value)>,
) -> Vec<QuestionAnswer> {
    if questions.is_empty() {
        return Vec::new();
    }
    let methods: Vec<&'static str> = questions.iter().map(|(method, _)| *method).collect();
    let _pause = cx.control.deadline.pause();
    let asking = cx.control.client.ask_all(questions);
    // Silence is no answer, however long the client waits.
    let replies =
        tokio::time::timeout(cx.settings.config.approval.expiry, asking).await.unwrap_or_default();
    let mut answers = Vec::new();
    for (index, method) in methods.into_iter().enumerate() {
        let reply = replies.get(index).and_then(|reply| reply.as_ref().ok());
        record_question(cx, server, method, reply);
        answers.push(match reply {
            Some(reply) => QuestionAnswer::Result(filter_reply(method, reply)),
            None => QuestionAnswer::NoOne,
        });
    }
    answers
}

/// Passes on what the protocol has, and no `_meta` of our client.
fn filter_reply(method: &str, reply: &Value) -> Value {
    match (method, reply) {
        (ELICITATION, Value::Object(members)) => {
            let wanted =
                |(name, _): &(&String, &Value)| matches!(name.as_str(), "action" | "content");
            let kept = members.iter().filter(wanted);
            Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
        }
        (_, Value::Object(members)) => {
            let mut members = members.clone();
            members.remove("_meta");
            Value::Object(members)
        }
        (_, other) => other.clone(),
    }
}

fn record_question(cx: &RunCx, server: &UpstreamServer, method: &str, reply: Option<&Value>) {
    let action = match reply {
        Some(reply) => reply["action"].as_str().unwrap_or("answered"),
        None => "unanswered",
    };
    let action = clean_text(action, 20);
    let fields = [("method".to_owned(), method.into()), ("action".to_owned(), action.into())];
    write_question(cx, server, Map::from_iter(fields));
}

/// Records a question that did not reach our client.
fn record_refusal(cx: &RunCx, server: &UpstreamServer, method: &str, fault: QuestionFault) {
    let fields = [("method", method), ("action", "refused"), ("reason", fault.name())];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.into()));
    write_question(cx, server, Map::from_iter(fields));
}

fn write_question(cx: &RunCx, server: &UpstreamServer, fields: Map<String, Value>) {
    let events = cx.control.call_events.with_field("upstream", server.id.as_str());
    if let Err(error) = events.write_upstream("upstream.question", fields) {
        tracing::error!("a question could not be recorded: {}", error.log_line());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_carries_nothing_else_of_our_client() {
        let reply = json!({"action": "accept", "content": {"a": 1}, "_meta": {"secret": 1}});
        assert_eq!(
            filter_reply(ELICITATION, &reply),
            json!({"action": "accept", "content": {"a": 1}})
        );
        assert_eq!(
            filter_reply(SAMPLING, &json!({"model": "m", "_meta": {}})),
            json!({"model": "m"})
        );
    }
}
