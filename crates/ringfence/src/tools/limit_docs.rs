//! The limits of the tools, as the documentation lists them. Each is defined in the code next to
//! what it limits; the table in `docs/tools.md` is generated from these.

use std::time::Duration;

/// One limit: its subject, its default, and the maximum that a caller can request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolLimit {
    pub subject: &'static str,
    pub default_value: String,
    pub maximum: String,
}

/// An amount that can be formatted for people.
pub trait DisplayAmount {
    /// Formats the amount with its unit.
    fn format_amount(&self) -> String;
}

/// A number of lines, entries, files and the like.
pub struct ItemCount(pub u64);
/// A number of bytes.
pub struct ByteCount(pub u64);

impl DisplayAmount for ItemCount {
    fn format_amount(&self) -> String {
        self.0.to_string()
    }
}

impl DisplayAmount for ByteCount {
    fn format_amount(&self) -> String {
        match self.0 {
            bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} bytes"),
        }
    }
}

impl DisplayAmount for Duration {
    fn format_amount(&self) -> String {
        match self.as_millis() {
            millis if millis % 1000 == 0 => format!("{} s", millis / 1000),
            millis => format!("{millis} ms"),
        }
    }
}

impl ToolLimit {
    /// Returns a limit that cannot be changed.
    pub fn from_fixed(subject: &'static str, amount: impl DisplayAmount) -> ToolLimit {
        ToolLimit { subject, default_value: amount.format_amount(), maximum: "the same".to_owned() }
    }

    /// Returns a limit with a default and a maximum.
    pub fn from_range(
        subject: &'static str,
        default_amount: impl DisplayAmount,
        max_amount: impl DisplayAmount,
    ) -> ToolLimit {
        ToolLimit {
            subject,
            default_value: default_amount.format_amount(),
            maximum: max_amount.format_amount(),
        }
    }

    /// Returns the limit on a result's text: the client's budget unless the call asks for more.
    pub fn for_text(max_bytes: usize) -> ToolLimit {
        ToolLimit {
            subject: "text of a result",
            default_value: "the client's budget".to_owned(),
            maximum: ByteCount(max_bytes as u64).format_amount(),
        }
    }

    /// Returns the limit on a call's time, up to what the operator allows.
    pub fn for_time(default_timeout: Duration) -> ToolLimit {
        ToolLimit {
            subject: "time",
            default_value: default_timeout.format_amount(),
            maximum: "`[limits] timeout_ms`".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;
    use crate::config::{ConfigFlags, ProcessEnv, resolve_config};
    use crate::tools::{BUILTIN_TOOLS, DynTool, UNLISTED_TOOLS};

    const BEGIN: &str = "<!-- generated: overview -->\n";
    const END: &str = "<!-- end -->";

    fn overview() -> String {
        let scratch = Scratch::new();
        let flags =
            ConfigFlags { root: Some(scratch.path().join("root")), ..ConfigFlags::default() };
        let config = resolve_config(
            &flags,
            &ProcessEnv::new([("HOME", "/nonexistent")], scratch.dir("project")),
        )
        .unwrap();
        let tools: Vec<std::sync::Arc<dyn DynTool>> =
            BUILTIN_TOOLS.iter().map(|make| make(&config)).collect();
        let mut text = String::from(
            "\n| tool | scope | side effects | read-only / destructive / idempotent / open world | progress | listed in |\n|---|---|---|---|---|---|\n",
        );
        let yes = |flag: bool| if flag { "yes" } else { "no" };
        for tool in &tools {
            let spec = tool.spec();
            let hints = &spec.hints;
            let effects =
                if spec.effects.is_empty() { "–".to_owned() } else { spec.effects.join(", ") };
            let sets = match spec.name.as_str() {
                "shell" => "shell, all",
                name if UNLISTED_TOOLS.contains(&name) => "all",
                _ => "core, all",
            };
            text.push_str(&format!(
                "| `{}` | {} | {effects} | {} / {} / {} / {} | {} | {sets} |\n",
                spec.name,
                spec.scope.name(),
                yes(hints.read_only),
                yes(hints.destructive),
                yes(hints.idempotent),
                yes(hints.open_world),
                yes(spec.streaming),
            ));
        }
        text.push_str("\n| tool | limit | usual | at most |\n|---|---|---|---|\n");
        for tool in &tools {
            for ToolLimit { subject: of, default_value: usual, maximum: most } in tool.limits() {
                text.push_str(&format!("| `{}` | {of} | {usual} | {most} |\n", tool.spec().name));
            }
        }
        text.push('\n');
        text
    }

    /// Checks that the table in the documentation matches the code. `RINGFENCE_BLESS=1` rewrites
    /// it.
    #[test]
    fn the_documents_have_the_limits_of_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tools.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (now, after) = rest.split_once(END).unwrap();
        let made = overview();
        if std::env::var_os("RINGFENCE_BLESS").is_some() {
            std::fs::write(path, format!("{before}{BEGIN}{made}{END}{after}")).unwrap();
            return;
        }
        assert_eq!(
            now, made,
            "docs/tools.md is not what the code says; RINGFENCE_BLESS=1 writes it anew"
        );
    }

    #[test]
    fn every_tool_has_limits() {
        let scratch = Scratch::new();
        let flags =
            ConfigFlags { root: Some(scratch.path().join("root")), ..ConfigFlags::default() };
        let config = resolve_config(
            &flags,
            &ProcessEnv::new([("HOME", "/nonexistent")], scratch.dir("project")),
        )
        .unwrap();
        for tool in BUILTIN_TOOLS.iter().map(|make| make(&config)) {
            assert!(!tool.limits().is_empty(), "{} has no limits", tool.spec().name);
        }
    }
}
