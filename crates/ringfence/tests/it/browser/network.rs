//! What the browser reaches, and what it must not.
