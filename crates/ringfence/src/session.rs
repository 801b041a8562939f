//! A session: who is on the other end, what it may touch, what it has been trusted with.
//!
//! On stdio it is the process, on HTTP the session id bound to its principal, on SSE the GET connection, on
//! 2026-07-28 an explicit handle we mint. Trust and stored outputs end with it.

mod outputs;

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::base::ids::short;
use crate::base::narrowing::Narrowing;
use crate::base::workspace::Workspace;
use crate::base::{Cancel, Result};
pub use outputs::{OpenOutput, OutputQuota, OutputQuotas, Outputs};

/// Who calls. With auth off there is one principal, the local user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal(String);

impl Principal {
    pub fn local() -> Self {
        Principal("local".to_owned())
    }

    pub fn named(name: impl Into<String>) -> Self {
        Principal(name.into())
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// A directory name that no principal can choose to collide with another's.
    pub fn directory(&self) -> String {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, self.0.as_bytes());
        let readable: String = self
            .0
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
            .take(32)
            .collect();
        format!("{readable}-{}", crate::base::ids::hex(&hash.as_ref()[..8]))
    }
}

/// What the client calls itself. It decides names and budgets, never rights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Client {
    pub name: String,
    pub version: String,
}

/// What a client has chosen for its commands, as far as the operator lets it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shape {
    /// In the workspace.
    pub cwd: Option<String>,
    pub env: Vec<(String, String)>,
}

impl Shape {
    pub fn is_plain(&self) -> bool {
        *self == Shape::default()
    }

    /// Puts it where a call says nothing itself.
    pub fn fill(&self, cwd: &mut Option<String>, env: &mut Option<BTreeMap<String, String>>) {
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

pub struct Session {
    pub id: String,
    pub principal: Principal,
    pub transport: &'static str,
    pub workspace: Arc<Workspace>,
    pub outputs: Arc<Outputs>,
    pub cancel: Cancel,
    client: RwLock<Client>,
    /// What the client last said about its own sandbox.
    narrowing: RwLock<Option<Arc<Narrowing>>>,
    shape: RwLock<Arc<Shape>>,
    trust: Mutex<HashSet<(String, String)>>,
    kept: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Session {
    pub fn new(
        principal: Principal,
        transport: &'static str,
        workspace: Arc<Workspace>,
        root: &Path,
        cancel: Cancel,
    ) -> Self {
        let id = short("s");
        Session {
            outputs: Arc::new(Outputs::new(root.join("outputs").join(&id))),
            id,
            principal,
            transport,
            workspace,
            cancel,
            client: RwLock::default(),
            narrowing: RwLock::default(),
            shape: RwLock::default(),
            trust: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// The same session, with outputs that count together with those of others. For one that has stored none yet.
    pub fn with_quota(self, quota: Arc<OutputQuota>, root: &Path) -> Self {
        let outputs = Outputs::with_quota(root.join("outputs").join(&self.id), quota);
        Session { outputs: Arc::new(outputs), ..self }
    }

    pub fn client(&self) -> Client {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_client(&self, client: Client) {
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
    }

    pub fn narrowing(&self) -> Option<Arc<Narrowing>> {
        self.narrowing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Holds for every call from now on that says nothing itself.
    pub fn set_narrowing(&self, narrowing: Narrowing) {
        *self.narrowing.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(narrowing));
    }

    pub fn shape(&self) -> Arc<Shape> {
        Arc::clone(&self.shape.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Holds for every call from now on.
    pub fn set_shape(&self, shape: Shape) {
        *self.shape.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(shape);
    }

    /// Trust is for one definition of one tool: a changed tool is asked for again.
    pub fn trust(&self, tool: &str, definition: &str) {
        self.lock_trust().insert((tool.to_owned(), definition.to_owned()));
    }

    pub fn trusts(&self, tool: &str, definition: &str) -> bool {
        self.lock_trust().contains(&(tool.to_owned(), definition.to_owned()))
    }

    /// What lives as long as the session and belongs to a module that it does not know: made on first use.
    pub fn keep<T: Any + Send + Sync>(&self, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        self.keep_while(|_| true, make)
    }

    /// The same for what does not fit for ever. Those who hold one that does not keep it.
    pub fn keep_while<T: Any + Send + Sync>(
        &self,
        fits: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let id = TypeId::of::<T>();
        if let Some(known) = kept.get(&id).cloned().and_then(|known| known.downcast().ok())
            && fits(&known)
        {
            return Ok(known);
        }
        let made = Arc::new(make()?);
        kept.insert(id, Arc::clone(&made) as Arc<dyn Any + Send + Sync>);
        Ok(made)
    }

    fn lock_trust(&self) -> std::sync::MutexGuard<'_, HashSet<(String, String)>> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session as one call sees it.
#[derive(Clone)]
pub struct View {
    pub session: Arc<Session>,
    /// False for a 2026-07-28 request without a handle: it can be granted nothing that outlives it.
    pub lasting: bool,
}
