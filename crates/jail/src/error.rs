//! Errors from setting up the sandbox: which layer refused, what was attempted, and the system's
//! reason.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// Layer of the sandbox, in the order in which the layers are set up.
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
    /// The program is a script whose interpreter does not exist; the error's text names the
    /// interpreter.
    Interpreter,
}

impl Layer {
    /// Returns the layer's name for error messages.
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

/// Error from setting up a layer of the sandbox, or from starting the program in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxError {
    pub layer: Layer,
    /// The attempted action, in a few words.
    pub what: String,
    /// Absent when the error did not come from the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    pub text: String,
}

impl SandboxError {
    /// Creates an error from what the system reported.
    pub fn from_io_error(layer: Layer, what: impl Into<String>, error: &io::Error) -> SandboxError {
        SandboxError {
            layer,
            what: what.into(),
            errno: error.raw_os_error(),
            text: error.to_string(),
        }
    }

    /// Creates an error that the system did not report.
    pub fn from_message(
        layer: Layer,
        what: impl Into<String>,
        text: impl Into<String>,
    ) -> SandboxError {
        SandboxError { layer, what: what.into(), errno: None, text: text.into() }
    }
}

impl fmt::Display for SandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.layer.name(), self.what, self.text)
    }
}

/// Attaches the layer in which an error occurred.
pub trait LayerContext<T> {
    /// Turns an error into a [`SandboxError`] of `layer`; `what` says what was attempted.
    fn in_layer(self, layer: Layer, what: impl Into<String>) -> Result<T, SandboxError>;
}

impl<T, E: Into<io::Error>> LayerContext<T> for Result<T, E> {
    fn in_layer(self, layer: Layer, what: impl Into<String>) -> Result<T, SandboxError> {
        self.map_err(|error| SandboxError::from_io_error(layer, what, &error.into()))
    }
}

impl std::error::Error for SandboxError {}
