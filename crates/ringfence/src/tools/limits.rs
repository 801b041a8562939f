//! The bounds of the tools, as the documents list them. Each stands in the code beside what it bounds; the table in
//! `docs/tools.md` is made from these.

use std::time::Duration;

/// One bound: what it is of, what it is when nobody asks, and the most that can be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    pub of: &'static str,
    pub usual: String,
    pub most: String,
}

/// An amount, in the form that people read.
pub trait Amount {
    fn shown(&self) -> String;
}

/// Of lines, entries, files and the like.
pub struct Count(pub u64);
pub struct Bytes(pub u64);

impl Amount for Count {
    fn shown(&self) -> String {
        self.0.to_string()
    }
}

impl Amount for Bytes {
    fn shown(&self) -> String {
        match self.0 {
            bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} bytes"),
        }
    }
}

impl Amount for Duration {
    fn shown(&self) -> String {
        match self.as_millis() {
            millis if millis % 1000 == 0 => format!("{} s", millis / 1000),
            millis => format!("{millis} ms"),
        }
    }
}

impl Limit {
    /// One that nobody can change.
    pub fn fixed(of: &'static str, amount: impl Amount) -> Limit {
        Limit { of, usual: amount.shown(), most: "the same".to_owned() }
    }

    pub fn up_to(of: &'static str, usual: impl Amount, most: impl Amount) -> Limit {
        Limit { of, usual: usual.shown(), most: most.shown() }
    }

    /// Text of a result: the client's budget, unless more is asked for.
    pub fn text(most: usize) -> Limit {
        Limit {
            of: "text of a result",
            usual: "the client's budget".to_owned(),
            most: Bytes(most as u64).shown(),
        }
    }

    /// Time, up to what the operator allows.
    pub fn time(usual: Duration) -> Limit {
        Limit { of: "time", usual: usual.shown(), most: "`[limits] timeout_ms`".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;
    use crate::config::{Env, Flags, resolve};
    use crate::tools::{TOOLS, Tool, UNLISTED};

    const BEGIN: &str = "<!-- generated: overview -->\n";
    const END: &str = "<!-- end -->";

    fn overview() -> String {
        let scratch = Scratch::new();
        let flags = Flags { root: Some(scratch.path().join("root")), ..Flags::default() };
        let config =
            resolve(&flags, &Env::new([("HOME", "/nonexistent")], scratch.dir("project"))).unwrap();
        let tools: Vec<std::sync::Arc<dyn Tool>> = TOOLS.iter().map(|make| make(&config)).collect();
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
                name if UNLISTED.contains(&name) => "all",
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
            for Limit { of, usual, most } in tool.limits() {
                text.push_str(&format!("| `{}` | {of} | {usual} | {most} |\n", tool.spec().name));
            }
        }
        text.push('\n');
        text
    }

    /// The table in the documents is the code's word. `RINGFENCE_BLESS=1` writes it anew.
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
        let flags = Flags { root: Some(scratch.path().join("root")), ..Flags::default() };
        let config =
            resolve(&flags, &Env::new([("HOME", "/nonexistent")], scratch.dir("project"))).unwrap();
        for tool in TOOLS.iter().map(|make| make(&config)) {
            assert!(!tool.limits().is_empty(), "{} has no limits", tool.spec().name);
        }
    }
}
