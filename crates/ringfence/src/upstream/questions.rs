//! Questions of a server to the human or the model behind our client. Each names its server, so
//! that it cannot pass for our own.

use ringfence_client::{Question, QuestionAnswer, clean_text};
use serde_json::{Map, Value, json};

use super::definition::clean_schema;
use super::pool::escape_uri_path;
use crate::config::UpstreamServer;
use crate::tools::RunCx;

const ELICITATION: &str = "elicitation/create";
const SAMPLING: &str = "sampling/createMessage";
const ROOTS: &str = "roots/list";
/// Longest text of a question.
const MAX_MESSAGE_CHARS: usize = 4_000;
const MAX_URL_CHARS: usize = 2_000;

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
    let no_one = QuestionPlan::Answered(QuestionAnswer::NoOne);
    match question.method.as_str() {
        ROOTS => QuestionPlan::Answered(QuestionAnswer::Result(describe_roots(cx, server))),
        ELICITATION if question.params["mode"] == "url" => {
            match url_params(&server.id, &question.params) {
                Some(params) if capabilities.elicitation_url => {
                    QuestionPlan::Ask(ELICITATION, params)
                }
                _ => no_one,
            }
        }
        ELICITATION if capabilities.elicitation => {
            QuestionPlan::Ask(ELICITATION, form_params(&server.id, question.params))
        }
        SAMPLING if server.allows_sampling && capabilities.sampling => {
            QuestionPlan::Ask(SAMPLING, question.params)
        }
        _ => no_one,
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

fn form_params(server_id: &str, mut params: Value) -> Value {
    let mut schema = params.get_mut("requestedSchema").map(Value::take);
    schema.iter_mut().for_each(clean_schema);
    json!({
        "message": attribute_message(server_id, &params),
        "requestedSchema": schema.filter(Value::is_object)
            .unwrap_or_else(|| json!({"type": "object", "properties": {}})),
    })
}

fn url_params(server_id: &str, params: &Value) -> Option<Value> {
    let url = params["url"].as_str()?;
    let is_web = url.starts_with("https://") || url.starts_with("http://");
    if !is_web || url.chars().count() > MAX_URL_CHARS || clean_text(url, MAX_URL_CHARS) != url {
        return None;
    }
    Some(json!({
        "mode": "url",
        "message": attribute_message(server_id, params),
        "url": url,
        "elicitationId": params["elicitationId"].as_str().unwrap_or_default(),
    }))
}

fn attribute_message(server_id: &str, params: &Value) -> String {
    let message = params["message"].as_str().unwrap_or_default();
    let message = clean_text(message, MAX_MESSAGE_CHARS);
    format!("The MCP server `{server_id}` asks (Ringfence only passes this on):\n{message}")
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
    let fields = Map::from_iter([
        ("method".to_owned(), method.into()),
        ("action".to_owned(), clean_text(action, 20).into()),
    ]);
    let events = cx.control.call_events.with_field("upstream", server.id.as_str());
    if let Err(error) = events.write_upstream("upstream.question", fields) {
        tracing::error!("a question could not be recorded: {}", error.log_line());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_its_server_and_hides_nothing() {
        let params = json!({
            "message": "Approve\u{202e}?\u{1b}[2J", "requestedSchema": {"type": "object"}, "_meta": {"x": 1},
        });
        let form = form_params("docs", params);
        let message = form["message"].as_str().unwrap();
        assert!(message.starts_with("The MCP server `docs` asks"), "{message}");
        assert!(message.ends_with("Approve?"), "{message}");
        assert!(form.get("_meta").is_none());
        assert_eq!(
            form_params("docs", json!({"requestedSchema": 5}))["requestedSchema"]["type"],
            "object"
        );
    }

    #[test]
    fn only_web_addresses_are_shown() {
        let with_url = |url: &str| url_params("docs", &json!({"mode": "url", "url": url}));
        assert!(with_url("https://example.com/login?x=1").is_some());
        for url in ["javascript:alert(1)", "file:///etc/passwd", "https://a\u{202e}b/", ""] {
            assert!(with_url(url).is_none(), "{url}");
        }
    }

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
