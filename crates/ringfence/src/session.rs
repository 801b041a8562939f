//! Session state: the principal, the workspace it may use and the trust it has been given.
//!
//! A session is the process on stdio, a session id bound to its principal on HTTP, the GET
//! connection on SSE, and an explicit handle that the server mints on 2026-07-28. Trust and stored
//! outputs end with the session.

mod outputs;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use crate::base::CancelToken;
use crate::base::IgnorePoison;
use crate::base::client_sandbox::ClientSandbox;
use crate::base::ids::short_id;
use crate::base::workspace::Workspace;
pub use outputs::{OpenOutput, OutputQuota, OutputQuotas, OutputStore};

/// Identity that requests are made under. With auth off the only principal is the local user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(String);

impl Principal {
    /// Returns the principal of the local user, used on stdio and when auth is off.
    pub fn local() -> Self {
        Principal("local".to_owned())
    }

    /// Returns the principal with this name.
    pub fn from_name(name: impl Into<String>) -> Self {
        Principal(name.into())
    }

    /// Returns the name, as used in the audit log and in prompts.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Returns a directory name for this principal. It contains a hash of the name, so that no
    /// principal can choose a name that collides with another's directory.
    pub fn directory_name(&self) -> String {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, self.0.as_bytes());
        let readable: String = self
            .0
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
            .take(32)
            .collect();
        format!("{readable}-{}", crate::base::ids::to_hex(&hash.as_ref()[..8]))
    }
}

/// Name and version that a client reports for itself. They decide the spelling of tool names and
/// the output budget, never rights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientInfo {
    pub name: String,
    pub version: String,
}

impl ClientInfo {
    /// Returns `name/version`, shortened, as used in the audit log.
    pub fn short_name(&self) -> String {
        format!("{}/{}", self.name, self.version).chars().take(128).collect()
    }
}

/// Working directory and environment that a client chose for its commands, within what the operator
/// allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Directory in the workspace.
    pub cwd: Option<String>,
    pub env: Vec<(String, String)>,
}

impl Overrides {
    /// Returns whether nothing is overridden.
    pub fn is_empty(&self) -> bool {
        *self == Overrides::default()
    }

    /// Fills in the values that a call does not set itself.
    pub fn fill_unset(&self, cwd: &mut Option<String>, env: &mut Option<BTreeMap<String, String>>) {
        if cwd.is_none() {
            cwd.clone_from(&self.cwd);
        }
        if !self.env.is_empty() {
            let env = env.get_or_insert_default();
            for (name, value) in &self.env {
                env.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
    }
}

/// State shared by all calls of one session.
pub struct Session {
    pub id: String,
    pub principal: Principal,
    pub transport: &'static str,
    pub workspace: Arc<Workspace>,
    pub outputs: Arc<OutputStore>,
    pub cancel: CancelToken,
    /// Name and version that the client first reported for itself. Shown to people, never trusted.
    client_name: OnceLock<String>,
    /// Sandbox that the client last reported for its own commands.
    client_sandbox: RwLock<Option<Arc<ClientSandbox>>>,
    overrides: RwLock<Arc<Overrides>>,
    trusted: Mutex<HashSet<(String, String)>>,
}

impl Session {
    /// Creates a session with a new id. Its outputs are stored under `root` with a quota of their
    /// own.
    pub fn new(
        principal: Principal,
        transport: &'static str,
        workspace: Arc<Workspace>,
        root: &Path,
        cancel: CancelToken,
    ) -> Self {
        let id = short_id("s");
        Session {
            outputs: Arc::new(OutputStore::new(root.join("outputs").join(&id))),
            id,
            principal,
            transport,
            workspace,
            cancel,
            client_name: OnceLock::new(),
            client_sandbox: RwLock::default(),
            overrides: RwLock::default(),
            trusted: Mutex::default(),
        }
    }

    /// Makes the session share an output quota with other sessions. Must be called before the
    /// session stores an output.
    pub fn with_quota(self, quota: Arc<OutputQuota>, root: &Path) -> Self {
        let outputs = OutputStore::with_quota(root.join("outputs").join(&self.id), quota);
        Session { outputs: Arc::new(outputs), ..self }
    }

    /// Returns what the client calls itself, if it has said so.
    pub fn client_name(&self) -> Option<&str> {
        self.client_name.get().map(String::as_str)
    }

    /// Notes what the client calls itself. Later names are ignored.
    pub fn set_client_name(&self, name: &str) {
        self.client_name.get_or_init(|| name.to_owned());
    }

    /// Returns the sandbox that the client last reported, if any.
    pub fn client_sandbox(&self) -> Option<Arc<ClientSandbox>> {
        self.client_sandbox.read().ignore_poison().clone()
    }

    /// Replaces the reported sandbox. It applies to every later call that does not carry its own.
    pub fn set_client_sandbox(&self, client_sandbox: ClientSandbox) {
        *self.client_sandbox.write().ignore_poison() = Some(Arc::new(client_sandbox));
    }

    /// Returns the overrides chosen for the session.
    pub fn overrides(&self) -> Arc<Overrides> {
        Arc::clone(&self.overrides.read().ignore_poison())
    }

    /// Replaces the overrides. They apply to every later call.
    pub fn set_overrides(&self, overrides: Overrides) {
        *self.overrides.write().ignore_poison() = Arc::new(overrides);
    }

    /// Records trust in one definition of one tool. A changed tool needs approval again.
    pub fn add_trust(&self, tool: &str, definition: &str) {
        self.lock_trust().insert((tool.to_owned(), definition.to_owned()));
    }

    /// Returns whether this definition of the tool is trusted.
    pub fn has_trust(&self, tool: &str, definition: &str) -> bool {
        self.lock_trust().contains(&(tool.to_owned(), definition.to_owned()))
    }

    fn lock_trust(&self) -> std::sync::MutexGuard<'_, HashSet<(String, String)>> {
        self.trusted.lock().ignore_poison()
    }
}
