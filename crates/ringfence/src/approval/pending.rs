//! Questions that wait for an answer on this server. The terminal and the console list and answer
//! them here; the first answer decides.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::prompt::ApprovalPrompt;
use crate::base::IgnorePoison;

/// Answer of a human to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApprovalAnswer {
    Once,
    Session,
    /// Run it in the sandbox, although the question is about running it outside. Only some
    /// questions offer it.
    Inside,
    Deny,
}

impl ApprovalAnswer {
    /// Returns the name on the wire and in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            ApprovalAnswer::Once => "once",
            ApprovalAnswer::Session => "session",
            ApprovalAnswer::Inside => "inside",
            ApprovalAnswer::Deny => "deny",
        }
    }
}

/// All questions that wait for an answer.
#[derive(Default)]
pub struct PendingQuestions {
    questions: Mutex<BTreeMap<String, PendingQuestion>>,
}

struct PendingQuestion {
    prompt: ApprovalPrompt,
    reply: oneshot::Sender<(ApprovalAnswer, &'static str)>,
}

/// Question being asked. Dropping it withdraws the question.
pub struct QuestionGuard<'a> {
    pending: &'a PendingQuestions,
    id: String,
}

impl Drop for QuestionGuard<'_> {
    fn drop(&mut self) {
        self.pending.lock().remove(&self.id);
    }
}

impl PendingQuestions {
    /// Questions that may wait per session. More are denied immediately, because no one would read
    /// them.
    pub const MAX_PER_SESSION: usize = 32;

    pub(super) fn add_question(
        &self,
        prompt: ApprovalPrompt,
    ) -> Option<(QuestionGuard<'_>, oneshot::Receiver<(ApprovalAnswer, &'static str)>)> {
        let mut questions = self.lock();
        if questions.values().filter(|other| other.prompt.session == prompt.session).count()
            >= Self::MAX_PER_SESSION
        {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let id = prompt.id.clone();
        questions.insert(id.clone(), PendingQuestion { prompt, reply });
        Some((QuestionGuard { pending: self, id }, answer))
    }

    /// Returns all waiting questions.
    pub fn list_questions(&self) -> Vec<ApprovalPrompt> {
        self.lock().values().map(|question| question.prompt.clone()).collect()
    }

    /// Delivers an answer. Returns false if the question is gone: answered elsewhere, expired or
    /// withdrawn.
    pub fn answer_question(&self, id: &str, answer: ApprovalAnswer, by: &'static str) -> bool {
        match self.lock().remove(id) {
            Some(question) => question.reply.send((answer, by)).is_ok(),
            None => false,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, PendingQuestion>> {
        self.questions.lock().ignore_poison()
    }
}
