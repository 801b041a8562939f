//! Announces to clients that a list they may have cached is out of date.

use tokio::sync::broadcast;

/// List that has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangedList {
    Tools,
    Prompts,
}

/// Channel on which changes are announced; every interested connection subscribes.
#[derive(Clone)]
pub struct ListChanges(broadcast::Sender<ChangedList>);

impl Default for ListChanges {
    fn default() -> Self {
        ListChanges(broadcast::channel(16).0)
    }
}

impl ListChanges {
    /// Announces a change to all subscribers.
    pub fn announce_change(&self, change: ChangedList) {
        // An error means that there are no subscribers, so no one holds an old list either.
        let _ = self.0.send(change);
    }

    /// Subscribes to future changes.
    pub fn subscribe(&self) -> broadcast::Receiver<ChangedList> {
        self.0.subscribe()
    }
}
