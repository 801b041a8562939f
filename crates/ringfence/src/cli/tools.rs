//! `ringfence tools`: lists the tools that a server offers, or explains one.

use std::fmt::Write as _;
use std::io::Write;

use ringfence_client::ToolDefinition;
use serde_json::{Value, json};

use super::screen::{ColumnFit, TextTable, escape_shown, stdout_width, wrap_line};
use super::server_target::{ServerTarget, find_tool};
use super::tool_schema::{SchemaField, list_fields};
use super::write_output;
use crate::base::clock::format_duration;
use crate::base::{Error, Result, visible};
use crate::mcp::meta;

/// List the tools that a server offers, or explain one: arguments, result, approval
///
/// Starts a server with this config and workspace and asks it, or asks the running server at `--url`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  ringfence tools                          what an agent gets here\n  ringfence tools file.search              its arguments and its result\n  ringfence tools --tools all              every built-in tool\n  ringfence tools --url http://127.0.0.1:8931/mcp   those of a running server"
)]
pub struct ToolsArgs {
    /// Tool to explain, in either spelling of its name
    name: Option<String>,
    #[command(flatten)]
    pub target: ServerTarget,
    /// Print the definitions as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `ringfence tools`.
pub fn run(args: &ToolsArgs, out: &mut impl Write) -> Result<()> {
    let catalog = args.target.run(false, async |client| args.target.list_tools(client).await)?;
    let tools: Vec<Value> = match &args.name {
        Some(name) => vec![parse_definition(find_tool(&catalog, name)?)?],
        None => catalog.tools.values().map(parse_definition).collect::<Result<_>>()?,
    };
    let text = match (args.json, &args.name, &tools[..]) {
        (true, Some(_), [tool]) => to_json(tool)?,
        (true, ..) => to_json(&json!(tools))?,
        (false, Some(_), [tool]) => format_tool(tool, stdout_width()),
        (false, ..) => format_list(&tools, stdout_width()),
    };
    write_output(out, &text)
}

fn parse_definition(tool: &ToolDefinition) -> Result<Value> {
    serde_json::from_str(&tool.text)
        .map_err(|error| Error::internal("a definition cannot be read").with_source(error))
}

fn to_json(value: &Value) -> Result<String> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::internal("the tools cannot be shown").with_source(error))?;
    Ok(format!("{text}\n"))
}

fn format_list(tools: &[Value], width: Option<usize>) -> String {
    if tools.is_empty() {
        return "The server offers no tools.\n".to_owned();
    }
    let mut table = TextTable::new(&[
        ("TOOL", ColumnFit::Fixed),
        ("ASKS", ColumnFit::Fixed),
        ("DOES", ColumnFit::CutEnd),
    ]);
    for tool in tools {
        let asks = match tool["_meta"][meta::REQUIRES_APPROVAL].as_bool() {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        let name = visible::escape_to_line(tool["name"].as_str().unwrap_or_default());
        table.add_row([name, asks.to_owned(), summarize_tool(tool)]);
    }
    table.render(width)
}

/// Returns one line about a tool: its title, or the first line of its description. If it cannot be
/// used here, the line says why.
fn summarize_tool(tool: &Value) -> String {
    let permission = &tool["_meta"][meta::PERMISSION];
    if let (Some(false), Some(reason)) =
        (permission["allow"].as_bool(), permission["reason"].as_str())
    {
        return visible::escape_to_line(&format!("not available: {reason}"));
    }
    let description = tool["description"].as_str().unwrap_or_default();
    let first_line = description.lines().next().unwrap_or_default();
    visible::escape_to_line(tool["title"].as_str().unwrap_or(first_line))
}

fn format_tool(tool: &Value, width: Option<usize>) -> String {
    let mut text = String::new();
    let name = tool["name"].as_str().unwrap_or_default();
    add_line(&mut text, &format!("{name}: {}", summarize_tool(tool)), width, 0);
    text.push('\n');
    for line in tool["description"].as_str().unwrap_or_default().lines() {
        add_line(&mut text, line, width, 0);
    }
    let facts = describe_facts(&tool["_meta"]);
    if !facts.is_empty() {
        text.push('\n');
        facts.iter().for_each(|fact| add_line(&mut text, fact, width, 2));
    }
    let arguments = list_fields(&tool["inputSchema"]);
    add_fields(&mut text, "Arguments", &arguments, width);
    let result = [&tool["outputSchema"], &tool["_meta"][meta::OUTPUT_SCHEMA]];
    let result = result.into_iter().find(|schema| schema.is_object()).map(list_fields);
    match result.as_deref() {
        Some([]) | None => text.push_str("\nResult: text\n"),
        Some(fields) => add_fields(&mut text, "Result", fields, width),
    }
    let example: Vec<String> = arguments
        .iter()
        .filter(|argument| argument.is_required)
        .map(|argument| format!("{}=…", argument.name))
        .collect();
    let _ = write!(text, "\nTry:  ringfence call {name} {}", example.join(" "));
    format!("{}\n", text.trim_end())
}

fn describe_facts(tool_meta: &Value) -> Vec<String> {
    let mut facts = Vec::new();
    match tool_meta[meta::REQUIRES_APPROVAL].as_bool() {
        Some(true) => facts.push("Approval: a person is asked before every call".to_owned()),
        Some(false) => facts.push("Approval: not needed".to_owned()),
        None => {}
    }
    if let Some(effects) = tool_meta[meta::SIDE_EFFECTS].as_array().filter(|list| !list.is_empty())
    {
        let effects: Vec<&str> = effects.iter().filter_map(Value::as_str).collect();
        facts.push(format!("Side effects: {}", effects.join(", ")));
    }
    if let Some(profile) = tool_meta[meta::SANDBOX_PROFILE].as_str() {
        facts.push(format!("Sandbox: {profile}"));
    }
    if let Some(timeout_ms) = tool_meta[meta::DEFAULT_TIMEOUT_MS].as_u64() {
        let timeout = std::time::Duration::from_millis(timeout_ms);
        facts.push(format!("Time limit: {}", format_duration(timeout)));
    }
    facts
}

fn add_fields(text: &mut String, heading: &str, fields: &[SchemaField<'_>], width: Option<usize>) {
    let _ = writeln!(text, "\n{heading}{}", if fields.is_empty() { ": none" } else { "" });
    let name_width =
        fields.iter().map(|field| field.name.chars().count()).max().unwrap_or(0).min(24);
    let indent = name_width + 4;
    for field in fields {
        let mut facts = vec![field.describe_type()];
        if field.is_required {
            facts.push("required".to_owned());
        }
        facts.extend(field.default_text().map(|default| format!("default {default}")));
        let line = format!("  {:<name_width$}  {}", field.name, facts.join(", "));
        add_line(text, &line, width, indent);
        for line in field.description().lines() {
            add_line(text, &format!("{}{line}", " ".repeat(indent)), width, indent);
        }
    }
}

/// Adds one line, wrapped. Its text may come from another server and must not drive the terminal.
fn add_line(text: &mut String, line: &str, width: Option<usize>, indent: usize) {
    let margin: String = line.chars().take_while(|c| *c == ' ').collect();
    // Only the text itself is escaped: the margin may be wider than the run of spaces that an
    // escaped text can have.
    let escaped = format!("{margin}{}", escape_shown(line.trim_start_matches(' ')));
    text.push_str(&wrap_line(&escaped, width, indent));
    text.push('\n');
}
