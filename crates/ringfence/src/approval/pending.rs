//! Questions that wait for an answer on this server. The terminal and the console list and answer
//! them here; the first answer decides.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::prompt::Prompt;

/// Answer of a human to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Once,
    Session,
    /// Run it in the sandbox, although the question is about running it outside. Only some
    /// questions offer it.
    Inside,
    Deny,
}

impl Answer {
    /// Returns the name on the wire and in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Answer::Once => "once",
            Answer::Session => "session",
            Answer::Inside => "inside",
            Answer::Deny => "deny",
        }
    }
}

/// All questions that wait for an answer.
#[derive(Default)]
pub struct Pending {
    waiting: Mutex<BTreeMap<String, Waiting>>,
}

struct Waiting {
    prompt: Prompt,
    reply: oneshot::Sender<(Answer, &'static str)>,
}

/// Question being asked. Dropping it withdraws the question.
pub struct Asked<'a> {
    pending: &'a Pending,
    id: String,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.pending.lock().remove(&self.id);
    }
}

impl Pending {
    /// Questions that may wait per session. More are denied immediately, because no one would read
    /// them.
    pub const PER_SESSION: usize = 32;

    pub(super) fn ask(
        &self,
        prompt: Prompt,
    ) -> Option<(Asked<'_>, oneshot::Receiver<(Answer, &'static str)>)> {
        let mut waiting = self.lock();
        if waiting.values().filter(|other| other.prompt.session == prompt.session).count()
            >= Self::PER_SESSION
        {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let id = prompt.id.clone();
        waiting.insert(id.clone(), Waiting { prompt, reply });
        Some((Asked { pending: self, id }, answer))
    }

    /// Returns all waiting questions.
    pub fn list(&self) -> Vec<Prompt> {
        self.lock().values().map(|waiting| waiting.prompt.clone()).collect()
    }

    /// Delivers an answer. Returns false if the question is gone: answered elsewhere, expired or
    /// withdrawn.
    pub fn answer(&self, id: &str, answer: Answer, by: &'static str) -> bool {
        match self.lock().remove(id) {
            Some(waiting) => waiting.reply.send((answer, by)).is_ok(),
            None => false,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
