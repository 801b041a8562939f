//! Parked calls. On 2026-07-28 a client cannot be asked in mid-call: the request ends with `input_required`
//! and sealed state, and the answer comes with the next request. Until then the run is parked here: it lives
//! on, its questions stay open, and the retry takes it up again. It is never started a second time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::Run;
use crate::base::caller::{Event, Question};
use crate::base::clock::unix_millis;
use crate::base::ids::short;
use crate::base::seal::Sealer;
use crate::base::{Cause, Error, Kind, Result};

/// A run and the questions it has open.
pub struct Held {
    pub run: Run,
    pub open: BTreeMap<String, Question>,
    id: String,
    /// Counts the times it was parked: state from an earlier round is used up.
    round: u64,
    asked: u64,
}

/// What the sealed state says. Nobody but us can read or make it.
#[derive(Serialize, Deserialize)]
struct State {
    run: String,
    round: u64,
    digest: String,
    principal: String,
    expires_unix_ms: u64,
}

impl Held {
    pub fn new(run: Run) -> Self {
        Held { run, open: BTreeMap::new(), id: short("r"), round: 0, asked: 0 }
    }

    /// Takes up questions under names the client answers by.
    pub fn ask(&mut self, questions: Vec<Question>) {
        for question in questions {
            self.asked += 1;
            self.open.insert(format!("q{}", self.asked), question);
        }
    }

    /// Hands the client's answers to whoever asked. Answers to nothing are ignored.
    pub fn answer(&mut self, answers: BTreeMap<String, Value>) {
        for (key, answer) in answers {
            if let Some(question) = self.open.remove(&key) {
                // The asker may have been answered elsewhere or have given up: then nobody listens.
                let _ = question.reply.send(Ok(answer));
            }
        }
    }

    /// Forgets questions that have been answered elsewhere (at the terminal) or have expired.
    pub fn drop_settled(&mut self) {
        self.open.retain(|_, question| !question.reply.is_closed());
    }
}

type Handover = oneshot::Sender<Held>;

pub struct Parked {
    runs: Arc<Mutex<HashMap<String, mpsc::Sender<Handover>>>>,
    sealer: Sealer,
    expiry: Duration,
    grace: Duration,
}

impl Parked {
    /// Runs that wait for a retry hold memory and perhaps processes, so their number is bounded.
    const LIMIT: usize = 256;

    pub fn new(expiry: Duration, grace: Duration) -> Result<Self> {
        Ok(Parked { runs: Arc::default(), sealer: Sealer::new()?, expiry, grace })
    }

    /// Puts a run aside and returns the sealed state that takes it up again, once.
    pub fn park(&self, mut held: Held) -> Result<String> {
        held.round += 1;
        let state = State {
            run: held.id.clone(),
            round: held.round,
            digest: held.run.digest.clone(),
            principal: held.run.principal.clone(),
            expires_unix_ms: unix_millis() + u64::try_from(self.expiry.as_millis()).unwrap_or(u64::MAX),
        };
        let sealed = self.sealer.seal(&purpose(&held.run.principal), &state)?;
        let (handover, inbox) = mpsc::channel(1);
        {
            let mut runs = self.lock();
            if runs.len() >= Self::LIMIT {
                held.run.cancel.cancel(Cause::Unanswered);
                return Err(Error::new(Kind::ResourceExhausted, "too many calls wait for an answer already"));
            }
            runs.insert(held.id.clone(), handover);
        }
        tokio::spawn(hold(held, inbox, Arc::clone(&self.runs), self.expiry, self.grace));
        Ok(sealed)
    }

    /// Takes up a parked run for the retry of the same call by the same principal.
    pub async fn take_up(&self, sealed: &str, principal: &str, digest: &str) -> Result<Held> {
        let refused = |reason, message: &str| {
            Error::invalid_arguments(message).reason(reason).hint(
                "Send back the requestState of the latest input_required result, once, with the same call; or make the call anew without it.",
            )
        };
        let state: State = self
            .sealer
            .open(&purpose(principal), sealed)
            .ok_or_else(|| refused("bad_state", "this requestState is not one of ours"))?;
        if state.expires_unix_ms < unix_millis() {
            return Err(refused("expired_state", "this requestState has expired"));
        }
        if state.digest != digest || state.principal != principal {
            return Err(refused("other_call", "this requestState belongs to another call"));
        }
        let used = || refused("used_state", "this requestState has been used already");
        let handover = self.lock().get(&state.run).cloned().ok_or_else(used)?;
        let (to_us, held) = oneshot::channel();
        handover.send(to_us).await.map_err(|_| used())?;
        let held = held.await.map_err(|_| used())?;
        if held.round != state.round {
            // An old state for a run that is parked again: put it back untouched, its own state still counts.
            let (again, inbox) = mpsc::channel(1);
            self.lock().insert(held.id.clone(), again);
            tokio::spawn(hold(held, inbox, Arc::clone(&self.runs), self.expiry, self.grace));
            return Err(used());
        }
        Ok(held)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, mpsc::Sender<Handover>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn purpose(principal: &str) -> String {
    format!("parked call of {principal}")
}

/// Keeps a parked run going: new questions are collected, progress goes nowhere, and silence is a no.
async fn hold(
    mut held: Held,
    mut inbox: mpsc::Receiver<Handover>,
    runs: Arc<Mutex<HashMap<String, mpsc::Sender<Handover>>>>,
    expiry: Duration,
    grace: Duration,
) {
    let forget = |id: &str| runs.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    let expired = tokio::time::sleep(expiry);
    tokio::pin!(expired);
    let (mut speaks, mut reachable) = (true, true);
    loop {
        tokio::select! {
            to = inbox.recv(), if reachable => {
                forget(&held.id);
                let Some(to) = to else { reachable = false; continue };
                match to.send(held) {
                    Ok(()) => return,
                    // Whoever wanted it is gone: nobody can come back for it with the same state.
                    Err(back) => held = back,
                }
            }
            event = held.run.events.recv(), if speaks => match event {
                Some(Event::Ask(questions)) => held.ask(questions),
                Some(Event::Progress { .. } | Event::Log { .. }) => {}
                None => speaks = false,
            },
            () = &mut expired => {
                forget(&held.id);
                held.open.clear();
                // A run that can do without the answer may still end by itself.
                let _ = tokio::time::timeout(grace, &mut held.run.done).await;
                held.run.cancel.cancel(Cause::Unanswered);
                return;
            }
        }
    }
}
