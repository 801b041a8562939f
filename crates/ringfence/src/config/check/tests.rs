//! One bad file for each kind of mistake: its place, its words, and the way out.

use super::*;
use crate::config::scratch::Scratch;

/// Looks at a file of these lines, in a home of its own. The file has no place in what is expected.
fn findings(text: &str, variables: &[(&str, &str)]) -> Vec<(FindingSeverity, String, String)> {
    let scratch = Scratch::new();
    let file = scratch.file("config/config.toml", text);
    let home = scratch.dir("home").display().to_string();
    let path = [("HOME", home.as_str()), ("PATH", "/usr/bin:/bin")];
    let env =
        ProcessEnv::new(path.into_iter().chain(variables.iter().copied()), scratch.dir("project"));
    let look =
        check_config(&ConfigFlags { config: Some(file.clone()), ..ConfigFlags::default() }, &env)
            .unwrap();
    let place = format!("{}:", file.display());
    look.findings
        .into_iter()
        .map(|finding| {
            // A place is shown as it is.
            let picture = finding.picture.as_deref().unwrap_or_default();
            assert_eq!(picture.is_empty(), finding.line.is_none(), "{finding:?}");
            (finding.severity, finding.to_line().replace(&place, ""), finding.hint)
        })
        .collect()
}

/// What is found is this and nothing else: severity, `line:column: message`, how the hint begins.
#[track_caller]
fn finds(text: &str, expected: &[(FindingSeverity, &str, &str)]) {
    let found = findings(text, &[]);
    let fits = |((severity, line, hint), (wanted, message, begins)): (
        &(FindingSeverity, String, String),
        &(FindingSeverity, &str, &str),
    )| { severity == wanted && line == message && hint.starts_with(begins) };
    let all = found.len() == expected.len() && found.iter().zip(expected).all(fits);
    assert!(all, "{text}\nfound {found:#?}\nexpected {expected:#?}");
}

use FindingSeverity::{Error as E, Warning as W};

#[test]
fn a_sound_file_has_nothing_to_find() {
    finds("", &[]);
    finds(crate::config::DEFAULT_CONFIG, &[]);
    finds("[mcp.lint]\ncommand = \"sh\"\nrequires_approval = false\n", &[]);
}

#[test]
fn an_unknown_key_is_pointed_at() {
    finds("tool = \"core\"\n", &[(E, "1:1: there is no key `tool` here", "Did you mean `tools`?")]);
    finds(
        "\n  expiry_s = 3\n",
        &[(E, "2:3: there is no key `expiry_s` here", "It belongs under [approval].")],
    );
    finds(
        "allow_domains = []\n",
        &[(E, "1:1: there is no key `allow_domains` here", "Valid keys: ")],
    );
    finds(
        "[policy.wider]\nwriteable = []\n",
        &[(E, "2:1: there is no key `writeable` here", "Did you mean `writable`?")],
    );
    finds(
        "limits = { a = 1, b = 2 }\n",
        &[
            (E, "1:12: there is no key `a` here", "Valid keys: timeout_ms, grace_ms,"),
            (E, "1:19: there is no key `b` here", "Valid keys: timeout_ms, grace_ms,"),
        ],
    );
    finds(
        "[mcp.x]\ncommand = \"sh\"\ntimeout = 5\n",
        &[(E, "3:1: there is no key `timeout` here", "Did you mean `timeout_ms`?")],
    );
}

#[test]
fn an_unknown_section_is_told_once() {
    finds(
        "[mpc.x]\ncommand = \"a\"\nargs = [1, 2]\n[mpc.y]\n",
        &[(E, "1:2: there is no key `mpc` here", "Did you mean `mcp`?")],
    );
    finds(
        "[aproval]\na = 1\nb = 2\n",
        &[(E, "1:2: there is no key `aproval` here", "Did you mean `approval`?")],
    );
    finds(
        "[servers.x]\nurl = \"y\"\n",
        &[(E, "1:2: there is no key `servers` here", "Valid keys: ")],
    );
}

#[test]
fn a_bad_value_is_pointed_at_in_its_list() {
    finds(
        "tools = \"cor\"\n",
        &[(E, "1:9: `cor` is not a value of this key", "Did you mean `core`?")],
    );
    finds(
        "tools = [\"core\"]\n",
        &[(
            E,
            "1:9: `tools` must be text, not a list",
            "Valid values: core, shell, all. Built-in tools to list.",
        )],
    );
    finds(
        "[tools.x]\n",
        &[(E, "1:2: `tools` must be text, not a table", "Valid values: core, shell, all.")],
    );
    finds(
        "[sandbox]\nprofile = \"fort\"\n[mcp.a]\ncommand = [\"sh\"]\nsandbox_profile = \"seatbel\"\nside_effects = [5]\n",
        &[
            (
                E,
                "2:11: `fort` is not a value of this key",
                "Valid values: default, contained, none.",
            ),
            (
                E,
                "4:11: `command` must be text, not a list",
                "Write text in quotes. Program to run: ",
            ),
            (
                E,
                "5:19: `seatbel` is not a value of this key",
                "Valid values: default, contained, none.",
            ),
            (
                E,
                "6:17: expected text, found integer `5`",
                "Valid values: filesystem_write, network. Side effects",
            ),
        ],
    );
    finds(
        "[secrets]\nkeyring = \"yes\"\n",
        &[(
            E,
            "2:11: `keyring` must be `true` or `false`, not text (not shown, because it may be a secret)",
            "Write it without quotes. Look up",
        )],
    );
    finds(
        "[limits]\ngrace_ms = 99999999999999999999\n[[approval]]\nexpiry_s = 1\n",
        &[
            (E, "2:12: 99999999999999999999 is not a number from 0 to 60000", "Time between"),
            (
                E,
                "3:1: `approval` must be a table, not a list",
                "Write its keys below `[approval]`.",
            ),
        ],
    );
    // A list is not taken for the values of a section, even if each of them would be valid.
    finds(
        "limits = [100, 7]\n[policy]\nwider = []\n",
        &[
            (E, "1:10: `limits` must be a table, not a list", "Write its keys below `[limits]`."),
            (
                E,
                "3:9: `wider` must be a table, not a list",
                "Write its keys below `[policy.wider]`.",
            ),
        ],
    );
    finds(
        "[limits]\ngrace_ms = -4\ntimeout_ms = \"1\"\n",
        &[
            (E, "2:12: -4 is not a number from 0 to 60000", "Time between SIGTERM and SIGKILL"),
            (
                E,
                "3:14: `timeout_ms` must be a whole number, not text \"1\"",
                "Write it without quotes. Maximum duration",
            ),
        ],
    );
    finds(
        "[surface]\nallow = [\"a/b\", \"file.*\", 5]\n",
        &[
            (E, "2:10: a pattern is a name, in which `*` and `?` are wildcards", "Patterns over"),
            (E, "2:27: expected text, found integer `5`", "Write text in quotes. Patterns over"),
        ],
    );
    finds(
        "[http]\nallowed_origins = [\n  \"https://a\",\n  \"*\",\n]\n",
        &[(
            E,
            "4:3: an origin is written `scheme://host` or `scheme://host:port`, without path or wildcards",
            "`scheme",
        )],
    );
    finds(
        "[limits]\n[limits.grace_ms]\na = 1\n",
        &[(E, "2:1: `grace_ms` must be a whole number, not a table", "Time between")],
    );
    finds("mcp = 3\n", &[(E, "1:1: `mcp` is not a table", "Write each tool")]);
    finds(
        "[mcp]\nlint = \"x\"\n",
        &[(E, "2:1: a tool is a table of keys", "Write it as a table: `[mcp.lint]`.")],
    );
}

#[test]
fn one_mistake_does_not_hide_another() {
    finds(
        "tools = 1\ncolour = 2\n[approval]\nexpiry = 3\n[mcp.x]\ncomand = \"a\"\nstdin = \"jason\"\n[policy]\nescalate = \"wider\"\n",
        &[
            (E, "1:9: `tools` must be text, not integer `1`", "Valid values: core, shell, all."),
            (E, "2:1: there is no key `colour` here", "Valid keys: "),
            (E, "4:1: there is no key `expiry` here", "Did you mean `expiry_s`?"),
            (E, "6:1: there is no key `comand` here", "Did you mean `command`?"),
            (E, "7:9: `jason` is not a value of this key", "Did you mean `json`?"),
            (
                E,
                "9:12: `escalate = \"wider\"` needs a section [policy.wider]",
                "Add [policy.wider]",
            ),
        ],
    );
}

#[test]
fn what_is_there_twice_names_the_first() {
    finds(
        "[mcp.a]\ncommand = \"sh\"\n\n[mcp.b]\ncommand = \"sh\"\n[mcp.a]\ncommand = \"true\"\n",
        &[(E, "6:6: there is already a tool named `a`", "The first is on line 1: ")],
    );
    finds(
        "[limits]\ngrace_ms = 1\ntimeout_ms = 2\ngrace_ms = 3\n",
        &[(E, "4:1: `grace_ms` is already set", "The first is on line 2: ")],
    );
    finds(
        "[limits]\n[approval]\n[limits]\n",
        &[(E, "3:2: the table `limits` already exists", "The first is on line 1: ")],
    );
    finds(
        "enable_mcp_server_surface = true\nENABLE_MCP_SERVER_SURFACE = true\n",
        &[(E, "2:1: `enable_mcp_server_surface` is set twice, in two spellings", "Keep one")],
    );
    // Where clients have no dots.
    finds(
        "[mcp.\"a.b\"]\ncommand = \"sh\"\n[mcp.a_b]\ncommand = \"sh\"\n[mcp.file_read]\ncommand = \"sh\"\n",
        &[
            (
                E,
                "3:6: `a_b` and `a.b` are the same name for clients that do not accept dots",
                "Choose another",
            ),
            (E, "5:6: `file_read` is a built-in tool", "Choose another"),
        ],
    );
}

#[test]
fn what_is_no_toml_gets_its_place() {
    finds(
        "tools = core\n[limits]\ngrace_ms =\n",
        &[
            (E, "1:9: string values must be quoted", "Put text in quotes"),
            (E, "3:11: there is no value", "Write one after `=`"),
        ],
    );
    finds(
        "[mcp.a]\ncommand = \"x\nargs = []\n",
        &[(E, "2:13: the text is not closed", "End it with")],
    );
    finds(
        "[mcp.a]\nargs = [\"a\"\n[mcp.b]\ncommand = \"sh\"\n",
        &[(E, "3:1: a list is not closed, or a comma is missing in it", "Write items")],
    );
    // What stands on other lines is told all the same.
    finds(
        "tools = core\ncolour = 1\n",
        &[
            (E, "1:9: string values must be quoted", "Put text in quotes"),
            (E, "2:1: there is no key `colour` here", "Valid keys: "),
        ],
    );
}

#[test]
fn all_that_is_wrong_with_a_command_is_told() {
    finds("[mcp.a]\nargs = []\n", &[(E, "1:6: there is no `command` to run", "Name a program")]);
    finds(
        "[mcp.a]\ncommand = \"sh\"\nargs = [\"{fiel}\", \"x\", \"}\", \"{all}y\"]\nsecret_args = [\"x\", \"pni\"]\ncwd = \"../x\"\n\
         [mcp.a.input_schema]\ntype = \"object\"\nproperties = { file = {}, pin = {}, all = { type = \"array\" } }\n",
        &[
            (E, "3:9: `{fiel}` is not a property in `input_schema`", "Did you mean `{file}`?"),
            (E, "3:24: `}` has no `{`; a brace itself is written `}}`", "An argument is"),
            (E, "3:29: `{all}` is a list", "A list becomes one argument per item"),
            (E, "4:16: `x` is not a property in `input_schema`", "Name a property"),
            (E, "4:21: `pni` is not a property in `input_schema`", "Did you mean `pin`?"),
            (E, "5:7: the directory leaves the workspace", "Name one inside"),
        ],
    );
    finds(
        "[mcp.a]\ncommand = \"sh\"\ninput_schema = { type = \"string\" }\n",
        &[(E, "3:16: the schema does not describe an object", "Arguments are an object")],
    );
    finds(
        "[mcp.a]\ncommand = \"sh\"\ninput_schema = '{\"type\": \"object\",}'\n",
        &[(E, "3:16: the schema is not JSON: trailing comma at line 1 column 19", "JSON Schema")],
    );
    finds(
        "[mcp.a]\ncommand = \"sh\"\n[mcp.a.env]\nA = \"${\"\n",
        &[(E, "4:5: `${` has no `}`", "An argument is")],
    );
    // What cannot be known while another key is wrong is not guessed at.
    finds(
        "[mcp.a]\ncomand = \"sh\"\nargs = [\"{x}\"]\ninput_schema = 3\n",
        &[
            (E, "2:1: there is no key `comand` here", "Did you mean `command`?"),
            (E, "4:16: a schema is a table, or a JSON object as text", "JSON Schema"),
        ],
    );
    finds(
        "[mcp.\"a b\"]\ncommand = \"sh\"\n",
        &[(E, "1:6: clients do not accept a tool with this name", "Use up to 64")],
    );
}

#[test]
fn own_tools_is_a_word_or_a_list() {
    let said = |text: &str| findings(&format!("[approval]\nown_tools = {text}\n"), &[]);
    for sound in ["\"auto\"", "\"always\"", "[]", "[\"*\"]", "[\"file.*\", \"shell_exec\"]"] {
        assert_eq!(said(sound), [], "{sound}");
    }
    for (wrong, place) in
        [("\"never\"", "2:13: "), ("3", "2:13: "), ("[\"file.*\", \"a/b\"]", "2:24: ")]
    {
        let found = said(wrong);
        assert!(
            found.len() == 1 && found[0].0 == E && found[0].1.starts_with(place),
            "{wrong}: {found:?}"
        );
    }
}

#[test]
fn what_may_not_be_meant_is_a_warning() {
    finds(
        "[surface]\ndeny = [\"file.reed\", \"nothing*\"]\n",
        &[
            (W, "2:9: `file.reed` matches no tool", "Did you mean `file.read`?"),
            (W, "2:22: `nothing*` matches no tool", "`ringfence config show`"),
        ],
    );
    finds(
        "[approval]\nown_tools = [\"file_*\", \"shell.exek\", \"mine\"]\n[mcp.mine]\ncommand = \"sh\"\n",
        &[
            (W, "2:24: `shell.exek` matches no tool", "Did you mean `shell.exec`?"),
            (W, "2:38: `mine` matches no tool", "This key is for built-in tools"),
        ],
    );
    finds(
        "[mcp.a]\ncommand = \"no-such-program\"\n[mcp.b]\ncommand = \"/nonexistent/b\"\n[mcp.c]\ncommand = \"/etc/passwd\"\n",
        &[
            (W, "2:11: `no-such-program` was not found", "Install it"),
            (W, "4:11: `/nonexistent/b` was not found", "Correct the path"),
            (W, "6:11: `/etc/passwd` is not an executable file", "Run `chmod +x /etc/passwd`."),
        ],
    );
}

#[test]
fn warnings_about_commands_have_their_places() {
    finds(
        "[limits]\ntimeout_ms = 1000\n[surface]\ndefault_timeout_ms = 900\n[mcp.a]\ncommand = \"sh\"\ntimeout_ms = 2000\n",
        &[(W, "7:14: no call runs longer than 1000 ms (`limits.timeout_ms`)", "Raise")],
    );
    finds(
        "[mcp.a]\ncommand = \"sh\"\nrequires_approval = false\nside_effects = [\"filesystem_write\"]\n",
        &[(
            W,
            "3:21: approval is still required. It may change files in the workspace.",
            "Remove the line",
        )],
    );
    finds(
        "[mcp.a]\ncommand = \"sh\"\nside_effects = [\"network\"]\n",
        &[(
            W,
            "3:16: `network` is declared, but the tool may reach nothing",
            "List what it may reach",
        )],
    );
    finds(
        "[mcp.a]\ncommand = \"sh\"\nargs = [\"x\", \"${secret:DB}\"]\nenv = { A = \"${NOPE}\" }\n",
        &[
            (
                W,
                "3:14: `${secret:DB}`: the secret `DB` is not set",
                "Have the operator run `ringfence secret set DB`",
            ),
            (
                W,
                "4:13: `${NOPE}`: the secret `NOPE` is not set",
                "Have the operator set the variable NOPE",
            ),
        ],
    );
    finds(
        "[mcp.a]\ncommand = \"sh\"\nenv = { API_TOKEN = \"abc\", PLAIN = \"x\", EMPTY_TOKEN = \"\" }\n",
        &[(
            W,
            "3:21: `API_TOKEN` looks like a secret, but its value is written in the file",
            "Run `ringfence secret set API_TOKEN`",
        )],
    );
    #[cfg(target_os = "linux")]
    finds(
        "[mcp.a]\ncommand = \"sh\"\nsandbox_profile = \"seatbelt\"\n",
        &[(
            W,
            "3:19: the profile `seatbelt` is for macOS: this tool cannot run here",
            "Use `default`",
        )],
    );
}

#[test]
fn a_section_that_is_refused_hides_no_other() {
    let found = findings(
        "workspace = \"/\"\n[auth]\nenabled = true\n[sandbox]\nprofile = \"seatbelt\"\n[policy]\nescalate = \"wider\"\n[mcp.a]\ncommand = \"no-such-program\"\n",
        &[],
    );
    let begins: Vec<&str> =
        found.iter().map(|(_, line, _)| line.split(": ").next().unwrap()).collect();
    let wanted: &[&str] = if cfg!(target_os = "macos") {
        &["1:13", "2:2", "7:12", "9:11"]
    } else {
        &["1:13", "2:2", "5:11", "7:12", "9:11"]
    };
    assert_eq!(begins, wanted, "{found:#?}");
}

/// Whatever is wrong, and wherever a secret stands.
#[test]
fn no_secret_of_a_file_is_ever_shown() {
    for text in [
        "[secrets]\nDB = \"hunter2\"\n",
        "[auth]\njwt_secret = \"hunter2\"\n",
        "[auth]\njwt_secret_file = [\n  \"hunter2\",\n]\n",
        "[mcp.a]\ncommand = \"sh\"\nenv = { API_TOKEN = \"hunter2\", B = \"${\" }\n",
        "[mcp.a]\ncommand = \"sh\"\nenv = { API_TOKEN = \"hunter2\" }\n",
        "[mcp.a]\ncommand = \"sh\"\n[mcp.a.env]\nDSN = \"pg://u:hunter2@h/${\"\n",
        "[mcp.a]\ncommand = \"sh\"\npassword = \"hunter2\"\n",
        "[mcp.a]\ncommand = \"sh\"\nenv = { API_TOKEN = [\"hunter2\"] }\n",
        "api_key = \"\"\"\nhunter2\n",
        "api_key = \"\"\"\nhunter2\"\"\" x\n",
        "api_key = [\n\"hunter2\"\n\"hunter2\"\n]\n",
        "[mcp.a]\ncommand = \"sh\"\nenv = {\n  API_TOKEN = \"x\",\n  B = \"hunter2${\",\n}\n",
    ] {
        let scratch = Scratch::new();
        let file = scratch.file("config/config.toml", text);
        let env = ProcessEnv::new([("HOME", "/nonexistent")], scratch.dir("project"));
        let flags = ConfigFlags {
            config: Some(file),
            root: Some(scratch.dir("root")),
            ..ConfigFlags::default()
        };
        let look = check_config(&flags, &env).unwrap();
        assert!(!look.findings.is_empty(), "{text}");
        assert!(
            !format!("{:?}", look.findings).contains("hunter2"),
            "{text}\n{:#?}",
            look.findings
        );
    }
}

#[test]
fn thousands_of_mistakes_take_no_time_and_are_not_all_told() {
    let mut text = String::new();
    for at in 0..20_000 {
        text.push_str(&format!("unknown_{at} = {at}\n"));
    }
    text.push_str("[mcp.a]\ncommand = \"sh\"\n[mcp.a.env]\n");
    for at in 0..10_000 {
        text.push_str(&format!("V{at} = {at}\n"));
    }
    let begun = std::time::Instant::now();
    let found = findings(&text, &[]);
    assert!(found.len() <= 200, "{}", found.len());
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn a_profile_that_hides_nothing_is_not_for_one_command_alone() {
    let entry = "[mcp.a]\ncommand = \"sh\"\nsandbox_profile = \"contained\"\n";
    finds(
        entry,
        &[(
            E,
            "3:19: `contained` hides nothing, and is weaker than the profile under [sandbox]",
            "Remove it",
        )],
    );
    finds(&format!("[sandbox]\nprofile = \"contained\"\n{entry}"), &[]);
}

#[test]
fn a_secret_is_no_word_where_commands_see_each_other() {
    let entry =
        "[mcp.a]\ncommand = \"sh\"\nargs = [\"-c\", \"x ${HOME}\"]\nenv = { A = \"${HOME}\" }\n";
    finds(entry, &[]);
    finds(
        &format!("[sandbox]\nprofile = \"contained\"\n{entry}"),
        &[(
            E,
            "5:15: a secret in `args` can be read by every other command in the profile `contained`",
            "Pass it in `env` instead.",
        )],
    );
}

#[test]
fn a_client_is_not_let_set_just_any_variable() {
    for pattern in ["*", "**", "?*", "[A-Z]*", "{A,B*}"] {
        finds(
            &format!("[session]\nenv_overrides = [\"MODE\", \"{pattern}\"]\n"),
            &[(
                E,
                "2:26: give the full name of a variable, or its first letters and `*`",
                "Patterns over the names of variables that a client may set, each beginning",
            )],
        );
    }
    finds("[session]\nenv_overrides = [\"MODE\", \"X_*\", \"_Y\"]\n", &[]);
}

#[test]
fn a_default_fits_its_own_property() {
    finds(
        "[mcp.a]\ncommand = \"sh\"\nargs = [\"--n={n}\"]\n[mcp.a.input_schema]\ntype = \"object\"\nproperties = { n = { type = \"integer\", default = \"x\" }, m = { \"$ref\" = \"#/$defs/m\", default = 3 } }\n\"$defs\" = { m = { type = \"integer\" } }\n",
        &[(E, "6:50: the `default` of `n` does not fit its own schema", "Correct the default")],
    );
    // Read as text, there is but one place.
    finds(
        "[mcp.a]\ncommand = \"sh\"\ninput_schema = '{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\", \"default\": \"x\"}}}'\n",
        &[(E, "3:16: the `default` of `n` does not fit its own schema", "Correct the default")],
    );
}

#[test]
fn a_lone_option_is_told() {
    let schema = |more: &str, required: &str| {
        format!(
            "[mcp.a]\ncommand = \"sh\"\nargs = [\"x\", \"--out\", \"{{o}}\", \"--\", \"{{o}}\"]\n[mcp.a.input_schema]\ntype = \"object\"\nproperties = {{ o = {{ type = \"string\"{more} }} }}\n{required}"
        )
    };
    finds(
        &schema("", ""),
        &[(
            W,
            "3:23: if `o` is not given, the option `--out` before it has no value",
            "Write both as one argument: `--out={o}`",
        )],
    );
    finds(&schema(", default = \"y\"", ""), &[]);
    finds(&schema("", "required = [\"o\"]\n"), &[]);
}
