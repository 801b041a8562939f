//! Pages that a user must open before a call can run: error -32042 of 2025-11-25.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use url::Url;

use crate::call::Question;
use crate::error::ClientError;
use crate::limits::Limits;

/// Code for a call that needs pages to be opened first. The call did not run.
const PAGES_REQUIRED: i64 = -32042;
/// Addresses that a hint names.
const MAX_HINT_PAGES: usize = 3;
/// Longest address in a hint.
const MAX_HINT_URL_BYTES: usize = 500;

/// Pages that the error of a call asks for.
pub(crate) struct RequiredPages(Vec<Value>);

#[derive(Deserialize)]
struct ErrorData {
    elicitations: Vec<Value>,
}

impl RequiredPages {
    /// Returns the pages that an error asks for. `None` for every other error.
    pub(crate) fn from_error(error: &ClientError, limits: &Limits) -> Option<RequiredPages> {
        let rpc = error.rpc().filter(|rpc| rpc.code == PAGES_REQUIRED)?;
        let data = rpc.data.as_deref().filter(|data| data.len() <= limits.question_bytes)?;
        let mut pages = serde_json::from_str::<ErrorData>(data).ok()?.elicitations;
        pages.retain(|page| page["url"].is_string());
        pages.iter_mut().for_each(|page| page["mode"] = "url".into());
        (1..=limits.server_requests).contains(&pages.len()).then_some(RequiredPages(pages))
    }

    /// Adds the pages to those that were opened. Returns whether all of them were opened before:
    /// then the user has not finished there, and opening them again does not help.
    pub(crate) fn were_opened(&self, opened: &mut BTreeSet<String>) -> bool {
        let keys = self.0.iter().map(|page| format!("{} {}", page["elicitationId"], page["url"]));
        // Each page is added, whatever is known of the others.
        keys.filter(|key| opened.insert(key.clone())).count() == 0
    }

    /// Returns the questions to the user.
    pub(crate) fn to_questions(&self) -> Vec<Question> {
        let to_question = |params: &Value| Question {
            method: "elicitation/create".to_owned(),
            params: params.clone(),
        };
        self.0.iter().map(to_question).collect()
    }

    /// Adds to the error of the call where the pages are.
    pub(crate) fn describe_in(&self, error: ClientError) -> ClientError {
        let urls = self.0.iter().filter_map(|page| Url::parse(page["url"].as_str()?).ok());
        // What stands in front of a host could be taken for the host.
        let is_plain = |url: &Url| {
            matches!(url.scheme(), "https" | "http")
                && url.username().is_empty()
                && url.password().is_none()
                && url.as_str().len() <= MAX_HINT_URL_BYTES
        };
        let urls: Vec<String> =
            urls.filter(is_plain).take(MAX_HINT_PAGES).map(String::from).collect();
        match urls.is_empty() {
            true => error,
            false => error.with_hint(format!(
                "The server waits until the user has finished at {}. Tell the user, then call again.",
                urls.join(" and ")
            )),
        }
    }
}
