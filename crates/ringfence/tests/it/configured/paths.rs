//! Arguments that are paths, and the directory of a command: what was looked at is what is used.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::{error_of, said, with};
use crate::support::{Approve, Server};

/// `src` with `a` in it, which is allowed, and `b` beside it, which is not.
fn fill(server: &Server) {
    std::fs::create_dir_all(server.workspace().join("src/sub")).unwrap();
    std::fs::write(server.workspace().join("src/a"), "inside\n").unwrap();
    std::fs::write(server.workspace().join("b"), "outside\n").unwrap();
}

#[test]
fn dots_behind_a_link_lead_where_the_kernel_goes() {
    let (server, mut client) = with(
        "[surface]\narguments = [\"src\"]\n[mcp.cat]\ncommand = \"cat\"\nargs = [\"--\", \"{p}\"]\nrequires_approval = false\n\
         input_schema = '{\"type\": \"object\", \"properties\": {\"p\": {\"type\": \"string\", \"format\": \"path\"}}}'",
    );
    fill(&server);
    let workspace = server.workspace();
    std::fs::create_dir_all(workspace.join("other/deep")).unwrap();
    std::fs::write(workspace.join("other/a"), "outside\n").unwrap();
    symlink("../other/deep", workspace.join("src/link")).unwrap();
    symlink("sub", workspace.join("src/near")).unwrap();
    symlink("round", workspace.join("src/round")).unwrap();
    for path in ["src/sub/../a", "src/near/../a", "./src/./a"] {
        assert_eq!(said(&client.call("cat", json!({"p": path}))), "inside\n", "{path}");
    }
    for path in [
        "src/link/../a",
        "src/link/./../a",
        "src/missing/../a",
        "src/a/../a",
        "src/round",
        "src/round/../a",
    ] {
        let message = client.call("cat", json!({"p": path}));
        assert_eq!(error_of(&message)["reason"], "surface_path", "{path}: {message:#}");
    }
}

#[test]
fn a_path_is_seen_wherever_the_schema_has_one() {
    let path = json!({"type": "string", "format": "path"});
    let cases: Vec<(Value, Value)> = vec![
        (
            json!({"properties": {"o": {"type": "object", "properties": {"p": path}}}}),
            json!({"o": {"p": "P"}}),
        ),
        (
            json!({"properties": {"p": {"$ref": "#/$defs/place"}}, "$defs": {"place": path}}),
            json!({"p": "P"}),
        ),
        (
            json!({"properties": {"p": {"$ref": "#here"}}, "$defs": {"x": {"$anchor": "here", "format": "path"}}}),
            json!({"p": "P"}),
        ),
        (
            json!({"properties": {"l": {"items": {"type": "array", "items": path}}}}),
            json!({"l": [["src/a", "P"]]}),
        ),
        (json!({"properties": {"p": {"anyOf": [{"type": "integer"}, path]}}}), json!({"p": "P"})),
        (json!({"properties": {"p": {"oneOf": [{"type": "integer"}, path]}}}), json!({"p": "P"})),
        (json!({"properties": {"p": {"allOf": [{"minLength": 1}, path]}}}), json!({"p": "P"})),
        (json!({"allOf": [{"properties": {"p": path}}]}), json!({"p": "P"})),
        (
            json!({"if": {"required": ["p"]}, "then": {"properties": {"p": path}}}),
            json!({"p": "P"}),
        ),
        (json!({"additionalProperties": path}), json!({"any": "P"})),
        (json!({"patternProperties": {"^p_": path}}), json!({"p_1": "P", "q": "b"})),
        (
            json!({"properties": {"l": {"prefixItems": [{"type": "integer"}, path]}}}),
            json!({"l": [1, "P"]}),
        ),
        (
            json!({"properties": {"l": {"prefixItems": [{}], "items": path}}}),
            json!({"l": ["b", "P"]}),
        ),
        (json!({"propertyNames": {"format": "path"}}), json!({"P": 1})),
        (
            json!({"properties": {"t": {"$ref": "#/$defs/tree"}},
                "$defs": {"tree": {"properties": {"at": path, "below": {"items": {"$ref": "#/$defs/tree"}}}}}}),
            json!({"t": {"at": "src/a", "below": [{"below": [{"at": "P"}]}]}}),
        ),
    ];
    let mut config = "[surface]\narguments = [\"src\"]\n".to_owned();
    for (at, (schema, _)) in cases.iter().enumerate() {
        let mut schema = schema.clone();
        schema["type"] = json!("object");
        config += &format!(
            "[mcp.t{at}]\ncommand = \"cat\"\nstdin = \"json\"\nrequires_approval = false\ninput_schema = '{schema}'\n"
        );
    }
    let (server, mut client) = with(&config);
    fill(&server);
    for (at, (schema, arguments)) in cases.iter().enumerate() {
        let given = |path: &str| {
            serde_json::from_str::<Value>(&arguments.to_string().replace("\"P\"", path)).unwrap()
        };
        said(&client.call(&format!("t{at}"), given("\"src/a\"")));
        let message = client.call(&format!("t{at}"), given("\"b\""));
        assert_eq!(error_of(&message)["reason"], "surface_path", "{schema}: {message:#}");
    }
}

#[test]
fn a_schema_that_leads_to_itself_ends() {
    let (server, mut client) = with(
        "[surface]\narguments = [\"src\"]\n[mcp.round]\ncommand = \"cat\"\nstdin = \"json\"\nrequires_approval = false\n\
         input_schema = '{\"type\": \"object\", \"properties\": {\"n\": {\"$ref\": \"#/$defs/n\"}}, \"$defs\": {\"n\": {\"anyOf\": [\
         {\"type\": \"string\", \"format\": \"path\"}, {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/n\"}}, {\"type\": \"array\", \"contains\": {\"$ref\": \"#/$defs/n\"}}]}}}'",
    );
    fill(&server);
    let nested = |path: &str| (0..8).fold(json!(path), |inner, _| json!([inner]));
    said(&client.call("round", json!({"n": nested("src/a")})));
    assert_eq!(
        error_of(&client.call("round", json!({"n": nested("b")})))["reason"],
        "surface_path"
    );
}

/// Between the question and the run the directory is made a link to another one.
#[test]
fn a_directory_that_was_swapped_meanwhile_is_not_used() {
    let (server, mut client) = with(
        "[surface]\narguments = [\"safe\"]\n[mcp.where]\ncommand = \"sh\"\nargs = [\"-c\", \"pwd; touch ran\"]\ncwd = \"safe/sub\"\nside_effects = [\"filesystem_write\"]\n\
         [mcp.cat]\ncommand = \"cat\"\nargs = [\"--\", \"{p}\"]\nside_effects = [\"filesystem_write\"]\n\
         input_schema = '{\"type\": \"object\", \"properties\": {\"p\": {\"type\": \"string\", \"format\": \"path\"}}}'",
    );
    let workspace = server.workspace();
    std::fs::create_dir_all(workspace.join("safe/sub")).unwrap();
    std::fs::create_dir_all(workspace.join("other")).unwrap();
    std::fs::write(workspace.join("safe/f"), "inside\n").unwrap();
    std::fs::write(workspace.join("other/f"), "outside\n").unwrap();
    client.approve = Approve::Never;
    let yes = || Approve::Once.answer().unwrap();
    let id = client.start("tools/call", json!({"name": "where", "arguments": {}}));
    let (question, _) = client.wait_question();
    std::fs::rename(workspace.join("safe/sub"), workspace.join("safe/old")).unwrap();
    symlink("../other", workspace.join("safe/sub")).unwrap();
    client.reply(&question, yes());
    let message = client.wait(&id);
    let error = error_of(&message);
    assert_eq!(
        (error["kind"].as_str(), error["reason"].as_str()),
        (Some("conflict"), Some("cwd_changed"))
    );
    assert!(!workspace.join("other/ran").exists() && !workspace.join("safe/old/ran").exists());
    // The same with a path that was looked at.
    let id = client.start("tools/call", json!({"name": "cat", "arguments": {"p": "safe/f"}}));
    let (question, _) = client.wait_question();
    std::fs::remove_file(workspace.join("safe/f")).unwrap();
    symlink("../other/f", workspace.join("safe/f")).unwrap();
    client.reply(&question, yes());
    let message = client.wait(&id);
    assert_eq!(error_of(&message)["reason"], "surface_path", "{message:#}");
}
