//! A schema that is built when it is first needed. A start needs none, and most clients start a
//! server far more often than they list its tools.

use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

type SchemaBuilder = Box<dyn FnOnce() -> Map<String, Value> + Send + Sync>;

/// JSON Schema of arguments or of a reply. Clones share it.
#[derive(Clone)]
pub struct LazySchema(Arc<LazyLock<Map<String, Value>, SchemaBuilder>>);

impl LazySchema {
    /// Creates a schema that `build` returns.
    pub fn new(build: impl FnOnce() -> Map<String, Value> + Send + Sync + 'static) -> LazySchema {
        LazySchema(Arc::new(LazyLock::new(Box::new(build))))
    }
}

impl From<Map<String, Value>> for LazySchema {
    fn from(schema: Map<String, Value>) -> LazySchema {
        LazySchema::new(|| schema)
    }
}

impl Deref for LazySchema {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Map<String, Value> {
        &self.0
    }
}

impl Serialize for LazySchema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl std::fmt::Debug for LazySchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}
