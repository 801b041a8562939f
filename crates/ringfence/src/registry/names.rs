//! Spelling of tool names for a client.
//!
//! Our names are dotted (`file.read`). MCP allows that, but many clients, or the model APIs behind
//! them, reject it. On our side the dotted name is always the tool's identity: policy, trust and
//! the audit log never use the other spelling. A client's name decides only how tool names are
//! written for it.

use serde_json::{Map, Value};

use crate::config::ToolNameStyle;
use crate::session::ClientInfo;
use crate::tools::with_underscores;

/// Spelling of tool names in what one client reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameStyle {
    /// `file.read`
    Dots,
    /// `file_read`
    Underscores,
}

/// Pattern for the names of clients, and the spelling that they get.
pub struct ClientPattern {
    /// Lower case; `*` matches any text.
    pub glob: &'static str,
    pub style: NameStyle,
    /// Also in docs/protocol.md; a test compares the two.
    #[cfg(test)]
    pub reason: &'static str,
}

macro_rules! client_patterns {
    ($($glob:literal $style:ident $reason:literal;)*) => {
        /// Client patterns. The first match decides; a client that matches none gets dots.
        pub const CLIENT_PATTERNS: &[ClientPattern] = &[$(
            ClientPattern { glob: $glob, style: NameStyle::$style, #[cfg(test)] reason: $reason },
        )*];
    };
}

client_patterns! {
    "ringfence-cli" Dots "our own command line, which shows names as the audit log does";
    "codex-mcp-client*" Dots "Codex shows the model underscores and calls by the dotted name";
    "mcp" Underscores "default name of the Python SDK: OpenAI Agents, LangChain, LlamaIndex, FastMCP and Pydantic AI send it and hand names to an API that answers 400";
    "ai-sdk*" Underscores "AI SDK (`ai-sdk-mcp-client`): hands names to the model's API";
    "*langchain*" Underscores "LangChain (`@langchain/mcp-adapters`): hands names to the model's API";
    "*langgraph*" Underscores "LangGraph, as LangChain";
    "*agents*" Underscores "agent frameworks by that name, among them OpenAI Agents";
    "*openai*" Underscores "OpenAI's connectors: the API takes no dot";
    "stdio: *" Underscores "OpenAI Agents for JavaScript without a name for the server";
    "sse: *" Underscores "OpenAI Agents for JavaScript without a name for the server";
    "streamable-http: *" Underscores "OpenAI Agents for JavaScript without a name for the server";
    "ringfence*" Underscores "OpenAI Agents for JavaScript and Mastra call themselves what the user called the server";
    "*mastra*" Underscores "Mastra: hands names to the model's API";
    "mcporter*" Underscores "mcporter takes `ringfence.file.read` for a tool `file`";
    "qwen*" Underscores "Qwen Code (`qwen-cli-mcp-client-…`): hands names to an OpenAI-compatible API";
    "claude-ai*" Underscores "Claude Desktop drops the whole list over one dot";
    "claude-desktop*" Underscores "Claude Desktop drops the whole list over one dot";
    "*copilot*" Underscores "Copilot CLI and SDK: the API answers 400";
    "*intellij*" Underscores "Copilot in JetBrains IDEs warns about each name";
    "*jetbrains*" Underscores "Copilot in JetBrains IDEs warns about each name";
    "visual studio code*" Underscores "VS Code warns about each name";
    "cursor*" Underscores "Cursor marks each name as invalid";
    "zed*" Underscores "Zed hands names to an API that answers 400";
}

impl NameStyle {
    /// Returns the style that the operator's setting selects for this client.
    pub fn for_client(setting: ToolNameStyle, client: &ClientInfo) -> NameStyle {
        match setting {
            ToolNameStyle::Dot => NameStyle::Dots,
            ToolNameStyle::Underscore => NameStyle::Underscores,
            ToolNameStyle::Auto => {
                let name = client.name.to_ascii_lowercase();
                let matching =
                    CLIENT_PATTERNS.iter().find(|pattern| matches_glob(pattern.glob, &name));
                matching.map_or(NameStyle::Dots, |pattern| pattern.style)
            }
        }
    }

    /// Returns a tool name in this style.
    pub fn spell_name(self, name: &str) -> String {
        match self {
            NameStyle::Dots => name.to_owned(),
            NameStyle::Underscores => with_underscores(name),
        }
    }
}

/// Returns whether the pattern matches the whole text. `*` matches any text, slashes included,
/// because clients have names such as `@langchain/mcp-adapters`.
fn matches_glob(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(last)
}

/// Rewriter for the dotted names of our tools in our own texts, such as descriptions and hints.
#[derive(Debug, Default)]
pub struct NameRewriter {
    names: Vec<String>,
}

impl NameRewriter {
    /// Creates a rewriter for these names. A name without a dot has only one spelling and is left
    /// out.
    pub fn new(names: impl Iterator<Item = String>) -> NameRewriter {
        NameRewriter { names: names.filter(|name| name.contains('.')).collect() }
    }

    /// Returns the text in this style. Replaces whole names only: `src/file.list` and
    /// `file.listing` stay.
    pub fn rewrite_text(&self, style: NameStyle, text: &str) -> String {
        let mut text = text.to_owned();
        if style == NameStyle::Dots {
            return text;
        }
        for name in self.names.iter() {
            let mut search_start = 0;
            while let Some(start) =
                text[search_start..].find(name.as_str()).map(|start| start + search_start)
            {
                let end = start + name.len();
                if is_whole_name(&text[..start], &text[end..]) {
                    // Both spellings have the same length.
                    text.replace_range(start..end, &with_underscores(name));
                }
                search_start = end;
            }
        }
        text
    }

    /// Rewrites every `description` in a schema.
    pub fn rewrite_schema(&self, style: NameStyle, schema: &mut Map<String, Value>) {
        for (key, value) in schema.iter_mut() {
            match value {
                Value::String(text) if key == "description" => {
                    *text = self.rewrite_text(style, text)
                }
                Value::Object(inner) => self.rewrite_schema(style, inner),
                _ => {}
            }
        }
    }
}

fn is_whole_name(before: &str, after: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '/' | '-' | '\\');
    let mut following = after.chars();
    let continues = match following.next() {
        // The full stop of a sentence is not part of a name.
        Some('.') => following.next().is_some_and(is_part),
        next => next.is_some_and(is_part),
    };
    !continues && !before.ends_with(|c| is_part(c) || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style_of(name: &str) -> NameStyle {
        NameStyle::for_client(
            ToolNameStyle::Auto,
            &ClientInfo { name: name.to_owned(), version: String::new() },
        )
    }

    #[test]
    fn names_follow_the_client_unless_forced() {
        let codex = ClientInfo { name: "codex-mcp-client".to_owned(), version: String::new() };
        let desktop = ClientInfo { name: "claude-ai".to_owned(), version: String::new() };
        assert_eq!(NameStyle::for_client(ToolNameStyle::Dot, &desktop), NameStyle::Dots);
        assert_eq!(
            NameStyle::for_client(ToolNameStyle::Underscore, &codex),
            NameStyle::Underscores
        );
        // As the clients were seen to call themselves, or as others report it.
        for name in [
            "mcp",
            "ai-sdk-mcp-client",
            "@langchain/mcp-adapters",
            "openai-agents",
            "openai-mcp",
            "stdio: /usr/bin/ringfence",
            "streamable-http: http://127.0.0.1:8931/mcp",
            "ringfence",
            "qwen-cli-mcp-client-ringfence",
            "Qwen-Code",
            "claude-ai",
            "GitHub-Copilot-CLI",
            "github-copilot-developer",
            "JetBrains-IU/copilot-intellij",
            "Visual Studio Code - Insiders",
            "cursor-vscode",
            "Zed",
        ] {
            assert_eq!(style_of(name), NameStyle::Underscores, "{name}");
        }
        for name in [
            "",
            "codex-mcp-client",
            "Codex-MCP-Client",
            "claude-code",
            "gemini-cli-mcp-client",
            "opencode",
            "inspector-client",
            "mcp-inspector",
            "my-mcp",
        ] {
            assert_eq!(style_of(name), NameStyle::Dots, "{name}");
        }
    }

    /// Keeps the table in docs/protocol.md in step with the code.
    #[test]
    fn every_pattern_is_documented() {
        let docs = include_str!("../../../../docs/protocol.md");
        for ClientPattern { glob, style, reason } in CLIENT_PATTERNS {
            assert_eq!(*glob, glob.to_lowercase(), "patterns are compared in lower case");
            let style = if *style == NameStyle::Dots { "dots" } else { "underscores" };
            let row = format!("| `{glob}` | {style} | {reason} |");
            assert!(docs.contains(&row), "docs/protocol.md has no row: {row}");
        }
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, fits) in [
            ("mcp", "mcp", true),
            ("mcp", "mcps", false),
            ("qwen*", "qwen", true),
            ("*agents*", "openai-agents/1", true),
            ("*agents*", "agent", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches_glob(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn only_whole_names_in_text_are_respelled() {
        let names = ["file.list", "file.read", "shell"].map(str::to_owned);
        let respeller = NameRewriter::new(names.into_iter());
        let text = "Use file.list, `file.read` or shell.exec; see file.read. Not src/file.list, file.listing, file.read.txt.";
        assert_eq!(respeller.rewrite_text(NameStyle::Dots, text), text);
        assert_eq!(
            respeller.rewrite_text(NameStyle::Underscores, text),
            "Use file_list, `file_read` or shell.exec; see file_read. Not src/file.list, file.listing, file.read.txt."
        );
    }
}
