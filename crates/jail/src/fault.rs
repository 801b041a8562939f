//! Why a fence could not be put up: which layer refused, at what, and the system's reason.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// The layers of the fence, in the order in which they are put up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    UserNamespace,
    Namespaces,
    Mounts,
    Network,
    Limits,
    Protected,
    Proc,
    Directory,
    Capabilities,
    Landlock,
    Seccomp,
    Exec,
    Canary,
    Program,
    /// The program is a script, and what should run it does not exist; the fault's text names it.
    Interpreter,
}

impl Layer {
    pub fn name(self) -> &'static str {
        match self {
            Layer::UserNamespace => "user namespace",
            Layer::Namespaces => "namespaces",
            Layer::Mounts => "mounts",
            Layer::Network => "network namespace",
            Layer::Limits => "limits",
            Layer::Protected => "protected paths",
            Layer::Proc => "proc",
            Layer::Directory => "working directory",
            Layer::Capabilities => "capabilities",
            Layer::Landlock => "landlock",
            Layer::Seccomp => "seccomp",
            Layer::Exec => "exec watching",
            Layer::Canary => "canary",
            Layer::Program => "program",
            Layer::Interpreter => "interpreter",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub layer: Layer,
    /// What was tried, in a few words.
    pub what: String,
    /// Absent when it was not the system that refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    pub text: String,
}

impl Fault {
    pub fn new(layer: Layer, what: impl Into<String>, error: &io::Error) -> Fault {
        Fault { layer, what: what.into(), errno: error.raw_os_error(), text: error.to_string() }
    }

    pub fn other(layer: Layer, what: impl Into<String>, text: impl Into<String>) -> Fault {
        Fault { layer, what: what.into(), errno: None, text: text.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.layer.name(), self.what, self.text)
    }
}

/// Says which layer an error belongs to.
pub trait InLayer<T> {
    fn in_layer(self, layer: Layer, what: impl Into<String>) -> Result<T, Fault>;
}

impl<T, E: Into<io::Error>> InLayer<T> for Result<T, E> {
    fn in_layer(self, layer: Layer, what: impl Into<String>) -> Result<T, Fault> {
        self.map_err(|error| Fault::new(layer, what, &error.into()))
    }
}

impl std::error::Error for Fault {}
