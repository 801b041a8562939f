//! Kinds of stores below a root: where each is, and what its file is sealed for.

/// What a store is for. All stores of a root have the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreKind {
    /// The operator's secrets.
    Secrets,
    /// Logins to other servers. They have a file of their own: they change whenever a token is
    /// renewed, and a change of the operator's secrets makes every server reload its config.
    Logins,
}

impl StoreKind {
    /// Every kind.
    pub(super) const ALL: [StoreKind; 2] = [StoreKind::Secrets, StoreKind::Logins];

    /// Returns the directory below the root.
    pub(super) fn directory(self) -> &'static str {
        match self {
            StoreKind::Secrets => "secrets",
            StoreKind::Logins => "upstreams/logins",
        }
    }

    /// Returns what the file is sealed for: one kind cannot be passed off as the other.
    pub(super) fn seal_purpose(self) -> &'static str {
        match self {
            StoreKind::Secrets => "ringfence secrets 1",
            StoreKind::Logins => "ringfence logins 1",
        }
    }

    /// Returns the maximum length of the file.
    pub(super) fn max_bytes(self) -> u64 {
        match self {
            StoreKind::Secrets => 1 << 20,
            // A login is much larger than a password, and every principal may have one.
            StoreKind::Logins => 16 << 20,
        }
    }
}
