//! What a client is told without having asked: that a list it may keep is no longer the current one.

use tokio::sync::broadcast;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Tools,
    Prompts,
}

/// Where changes are announced; every connection that wants to know listens.
#[derive(Clone)]
pub struct Changes(broadcast::Sender<Change>);

impl Default for Changes {
    fn default() -> Self {
        Changes(broadcast::channel(16).0)
    }
}

impl Changes {
    pub fn announce(&self, change: Change) {
        // An error means that nobody listens, so nobody keeps an old list either.
        let _ = self.0.send(change);
    }

    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.0.subscribe()
    }
}
