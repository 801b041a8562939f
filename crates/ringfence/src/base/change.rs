//! Announces to clients that a list they may have cached is out of date.

use tokio::sync::broadcast;

/// List that has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Tools,
    Prompts,
}

/// Channel on which changes are announced; every interested connection subscribes.
#[derive(Clone)]
pub struct Changes(broadcast::Sender<Change>);

impl Default for Changes {
    fn default() -> Self {
        Changes(broadcast::channel(16).0)
    }
}

impl Changes {
    /// Announces a change to all subscribers.
    pub fn announce(&self, change: Change) {
        // An error means that there are no subscribers, so no one holds an old list either.
        let _ = self.0.send(change);
    }

    /// Subscribes to future changes.
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.0.subscribe()
    }
}
