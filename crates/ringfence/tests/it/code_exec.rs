//! `code.exec` on the real binary: values, exceptions, figures, files, and interpreters that live on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::server::Scratch;
use crate::support::subset::assert_holds;
use crate::support::{
    Client, DEADLINE, MODERN, Options, SESSIONS, Server, Transport, eventually, process,
};

/// The system's own Python: `conformance/packages.sh` gives it matplotlib, whatever stands first on PATH elsewhere.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

fn options() -> Options {
    Options::new(Transport::Stdio).env("PATH", PATH)
}

fn start() -> (Server, Client) {
    let mut server = options().config("[limits]\ngrace_ms = 500").spawn();
    let client = server.connect(SESSIONS);
    (server, client)
}

/// The whole result, and the JSON of its first block.
fn call(client: &mut Client, arguments: Value) -> (Value, Value) {
    let result = client.call("code.exec", arguments)["result"].clone();
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result:#}"));
    let said = serde_json::from_str(text).unwrap_or_else(|_| json!({"text": text}));
    (result, said)
}

fn run(client: &mut Client, language: &str, code: &str) -> Value {
    call(client, json!({"language": language, "code": code})).1
}

fn cell(client: &mut Client, language: &str, session: &str, code: &str) -> Value {
    call(client, json!({"language": language, "session": session, "code": code})).1
}

fn refused(client: &mut Client, arguments: Value) -> Value {
    let result = client.call("code.exec", arguments)["result"].clone();
    assert_eq!(result["isError"], true, "{result:#}");
    result["structuredContent"]["error"].clone()
}

#[test]
fn the_last_value_comes_back_beside_what_was_said() {
    let (_server, mut client) = start();
    let said = run(
        &mut client,
        "python",
        "import sys\nprint('out'); print('err', file=sys.stderr)\n[1, 2] + [3]",
    );
    assert_holds(
        json!({"status": "completed", "exit_code": 0, "stdout": "out\n", "stderr": "err\n", "result": "[1, 2, 3]",
               "sandbox": {"profile": "default", "network": "off", "denials": []}, "trace_id": "*", "error": null}),
        &said,
    );
    let said = run(
        &mut client,
        "javascript",
        "console.log('out');\nconst x = await Promise.resolve(41);\n({x: x + 1})",
    );
    assert_holds(json!({"status": "completed", "stdout": "out\n", "result": "{ x: 42 }"}), &said);
    let said = run(&mut client, "bash", "echo out; echo err >&2; exit 3");
    assert_holds(
        json!({"status": "failed", "exit_code": 3, "stdout": "out\n", "stderr": "err\n", "result": null}),
        &said,
    );
    let said = run(&mut client, "perl", "print \"from $0\\n\"; exit 4");
    assert_holds(json!({"status": "failed", "exit_code": 4, "stdout": "~from /dev/fd/"}), &said);
}

#[test]
fn an_exception_is_a_result_with_its_line() {
    let (server, mut client) = start();
    let (result, said) = call(
        &mut client,
        json!({"language": "python", "code": "def f(x):\n    return 1 / x\n\nf(0)\n"}),
    );
    assert_eq!(result["isError"], false);
    assert_holds(
        json!({"status": "failed", "exit_code": 1, "stderr": "", "error": {"name": "ZeroDivisionError",
               "message": "division by zero", "line": 2, "traceback": "~File \"<code>\", line 4, in <module>\n    f(0)"}}),
        &said,
    );
    assert!(!said["error"]["traceback"].as_str().unwrap().contains("driver"), "{said:#}");
    let said = run(&mut client, "python", "x = 1\nx = = 2");
    assert_holds(json!({"error": {"name": "SyntaxError", "line": 2}}), &said);
    let said =
        run(&mut client, "javascript", "const a = 1;\n\nfunction f() {\n  return null.x;\n}\nf()");
    assert_holds(
        json!({"status": "failed", "exit_code": 1, "error": {"name": "TypeError", "line": 4, "message": "~null"}}),
        &said,
    );
    let said = run(&mut client, "bash", ":\nno-such-command\n");
    assert_holds(
        json!({"exit_code": 127, "stderr": "~line 2: no-such-command: command not found"}),
        &said,
    );
    std::fs::write(server.workspace().join("bad.py"), "import helper\n\nhelper.fail()\n").unwrap();
    std::fs::write(server.workspace().join("helper.py"), "def fail():\n    raise KeyError('k')\n")
        .unwrap();
    let (_, said) = call(&mut client, json!({"language": "python", "file": "bad.py"}));
    assert_holds(
        json!({"error": {"name": "KeyError", "line": 3, "traceback": "~helper.py\", line 2, in fail"}}),
        &said,
    );
}

#[test]
fn a_file_has_its_arguments_and_its_input() {
    let (server, mut client) = start();
    std::fs::create_dir(server.workspace().join("sub")).unwrap();
    let write =
        |name: &str, text: &str| std::fs::write(server.workspace().join(name), text).unwrap();
    write(
        "sub/a.py",
        "import sys, os\nprint(sys.argv[1:], input(), __name__, os.path.basename(__file__), os.getcwd())",
    );
    write(
        "sub/a.mjs",
        "import { argv } from 'node:process';\nconsole.log(argv.slice(2), import.meta.url.slice(-5))",
    );
    write("sub/a.sh", "read x; echo \"$1 $x ${BASH_SOURCE[0]##*/} $0\"");
    let mut file = |language: &str, file: &str| {
        let arguments = json!({"language": language, "file": file, "args": ["one two"], "stdin": "line\n", "cwd": "sub"});
        call(&mut client, arguments).1
    };
    let here = server.workspace().join("sub").display().to_string();
    let said = file("python", "sub/a.py");
    assert_eq!(said["stdout"], format!("['one two'] line __main__ a.py {here}\n"), "{said:#}");
    assert_eq!(file("javascript", "sub/a.mjs")["stdout"], "[ 'one two' ] a.mjs\n");
    assert_eq!(file("bash", "sub/a.sh")["stdout"], format!("one two line a.sh {here}/a.sh\n"));
    let error = refused(&mut client, json!({"language": "python", "file": "../../etc/passwd"}));
    assert_holds(json!({"kind": "permission_denied", "reason": "outside_workspace"}), &error);
}

#[test]
fn files_that_were_made_are_listed_and_others_are_not() {
    let (server, mut client) = start();
    for name in ["kept", "changed", "removed"] {
        std::fs::write(server.workspace().join(name), "old").unwrap();
    }
    let code = "import os\nos.makedirs('d', exist_ok=True)\nopen('d/new.csv', 'w').write('a,b')\n\
                open('changed', 'a').write('more')\nos.remove('removed')\nopen('/tmp/x', 'w').write('x')\nNone";
    let said = run(&mut client, "python", code);
    assert_eq!(
        said["artifacts"],
        json!([
            {"path": "d/new.csv", "change": "created", "bytes": 3, "mime": "text/csv"},
            {"path": "changed", "change": "changed", "bytes": 7},
            {"path": "removed", "change": "removed"},
        ]),
        "{said:#}"
    );
    let said = run(&mut client, "bash", "cat kept");
    assert_eq!((&said["artifacts"], &said["stdout"]), (&Value::Null, &json!("old")));
}

#[test]
fn figures_are_images_or_files() {
    let (server, mut client) = start();
    let plot = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()\nplt.close('all')\n\
                plt.figure(figsize=(60, 5))\nplt.plot([2, 1])\nprint('drawn')";
    let (result, said) = call(&mut client, json!({"language": "python", "code": plot}));
    assert_holds(
        json!({"status": "completed", "stdout": "drawn\n", "stderr": "", "figures": 2}),
        &said,
    );
    assert!(
        result.get("structuredContent").is_none_or(Value::is_null),
        "an image would be lost beside it"
    );
    let blocks = result["content"].as_array().unwrap();
    assert_eq!(blocks.len(), 3);
    for block in &blocks[1..] {
        assert_holds(
            json!({"type": "image", "mimeType": "image/png", "data": "~iVBORw0KGgo"}),
            block,
        );
        let head = base64_head(block["data"].as_str().unwrap());
        let width = u32::from_be_bytes(head[16..20].try_into().unwrap());
        assert!((1..=1568).contains(&width), "{width}");
    }
    let (result, said) =
        call(&mut client, json!({"language": "python", "code": plot, "figures": "file"}));
    assert_eq!(result["content"].as_array().unwrap().len(), 1);
    let paths: Vec<&Value> =
        said["artifacts"].as_array().unwrap().iter().map(|artifact| &artifact["path"]).collect();
    assert_eq!(paths, ["figure-1.png", "figure-2.png"], "{said:#}");
    assert_eq!(said["artifacts"][0]["mime"], "image/png");
    assert!(
        std::fs::read(server.workspace().join("figure-1.png")).unwrap().starts_with(b"\x89PNG")
    );
    let (result, _) =
        call(&mut client, json!({"language": "python", "code": plot, "figures": "none"}));
    assert_eq!(result["content"].as_array().unwrap().len(), 1);
}

/// The first bytes of what base64 stands for.
fn base64_head(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let quads = text.as_bytes().chunks(4).take(8);
    quads
        .flat_map(|q| {
            (q.iter().fold(0u32, |all, c| all << 6 | u32::from(value(*c)))).to_be_bytes()[1..]
                .to_vec()
        })
        .collect()
}

/// Code can say over the line what it likes; it is its own word and stays within bounds.
#[test]
fn what_code_forges_over_the_line_stays_harmless() {
    let (_server, mut client) = start();
    let code = "import os, stat\nfor fd in range(3, 64):\n    try:\n        if stat.S_ISSOCK(os.fstat(fd).st_mode):\n            \
                os.write(fd, b'value\\x1f' + b'A' * 50000 + b'\\x1efigure\\x1fPGh0bWw+\\x1esaved\\x1f/etc/passwd\\x1estatus\\x1f7\\0')\n    \
                except OSError: pass\nprint('sent')";
    let (result, said) = call(&mut client, json!({"language": "python", "code": code}));
    assert_eq!(result["content"].as_array().unwrap().len(), 1, "no page passes as an image");
    assert_holds(json!({"status": "completed", "stdout": "sent\n", "artifacts": null}), &said);
    assert!(said["result"].as_str().unwrap().len() < 10_000);
}

#[test]
fn sessions_keep_what_the_code_had() {
    let (_server, mut client) = start();
    for (language, first, second, result) in [
        ("python", "import math\nx = 5\ndef f(): return x + 1", "f()", json!("6")),
        (
            "javascript",
            "const x = 5;\nlet y = await 1;\nfunction f() { return x + y }",
            "const x2 = 1; f()",
            json!("6"),
        ),
        (
            "bash",
            "x=5; cd /; f() { echo \"$x $PWD\"; }; declare -A m=([k]=v)",
            "f; echo ${m[k]}; false",
            Value::Null,
        ),
    ] {
        let begun = cell(&mut client, language, "new", first);
        assert_holds(json!({"status": "completed", "error": null, "session": "~sh-"}), &begun);
        let id = begun["session"].as_str().unwrap().to_owned();
        let said = cell(&mut client, language, &id, second);
        assert_eq!((&said["result"], &said["session"]), (&result, &json!(id)), "{said:#}");
        if language == "bash" {
            assert_holds(json!({"stdout": "5 /\nv\n", "exit_code": 1, "status": "failed"}), &said);
        }
        let arguments = json!({"language": language, "session": id, "reset": true, "code": "f"});
        let (_, said) = call(&mut client, arguments);
        assert_eq!(said["session"], json!(id), "{said:#}");
        match language {
            "python" => assert_holds(json!({"error": {"name": "NameError", "line": 1}}), &said),
            "javascript" => {
                assert_holds(json!({"error": {"name": "ReferenceError", "line": 1}}), &said)
            }
            _ => assert_holds(json!({"exit_code": 127, "stderr": "~f: command not found"}), &said),
        }
        let other = if language == "python" { "bash" } else { "python" };
        let error = refused(&mut client, json!({"language": other, "session": id, "code": "1"}));
        assert_holds(
            json!({"kind": "invalid_arguments", "message": format!("~({language})")}),
            &error,
        );
    }
    let listed =
        client.call("shell.session", json!({"op": "list"}))["result"]["structuredContent"].clone();
    let kinds: Vec<&Value> =
        listed["runs"].as_array().unwrap().iter().map(|run| &run["kind"]).collect();
    assert_eq!(kinds, ["python", "javascript", "bash"], "{listed:#}");
    // What a session has started goes on between its cells, and dies with it.
    let marker = process::marker();
    let id = listed["runs"][2]["id"].as_str().unwrap();
    let said = cell(
        &mut client,
        "bash",
        id,
        &format!("bash -c 'sleep 300; :' {marker} >/dev/null 2>&1 &"),
    );
    assert_eq!(said["status"], "completed", "{said:#}");
    assert_eq!(cell(&mut client, "bash", id, ":")["status"], "completed");
    eventually(DEADLINE, "it goes on", || !process::with_argument(&marker).is_empty());
    client.call("shell.session", json!({"op": "close", "id": id}));
    process::wait_for_death(&marker, Duration::from_secs(5));
}

#[test]
fn an_endless_loop_is_interrupted_and_the_session_lives_on() {
    let (_server, mut client) = start();
    for (language, begin, endless, value) in [
        ("python", "x = 7", "print('begun')\nwhile True:\n    pass", "x"),
        ("javascript", "var x = 7", "console.log('begun');\nwhile (true) {}", "x"),
        ("bash", "x=7", "echo begun; while :; do :; done; echo never", "echo $x"),
        ("bash", "x=7", "echo begun; sleep 60; echo never", "echo $x"),
    ] {
        let id = cell(&mut client, language, "new", begin)["session"].as_str().unwrap().to_owned();
        let begun = Instant::now();
        let arguments =
            json!({"language": language, "session": id, "code": endless, "timeout_ms": 400});
        let (result, said) = call(&mut client, arguments);
        assert_eq!(result["isError"], true);
        assert_holds(
            json!({"status": "timed_out", "stdout": "begun\n", "session": id, "error": {"kind": "deadline_exceeded"}}),
            &said,
        );
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        if language == "python" {
            assert_holds(json!({"error": {"name": "KeyboardInterrupt", "line": "*"}}), &said);
        }
        let said = cell(&mut client, language, &id, value);
        assert!(said["result"] == "7" || said["stdout"] == "7\n", "{said:#}");
    }
}

#[test]
fn one_that_does_not_answer_is_ended_and_says_so() {
    let (_server, mut client) = start();
    let stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun')\nwhile True: pass";
    let id = cell(&mut client, "python", "new", "1")["session"].as_str().unwrap().to_owned();
    let arguments =
        json!({"language": "python", "session": id, "code": stubborn, "timeout_ms": 300});
    let (_, said) = call(&mut client, arguments);
    assert_holds(
        json!({"status": "timed_out", "session": null, "stdout": "begun\n", "warnings": ["~was lost"]}),
        &said,
    );
    let error = refused(&mut client, json!({"language": "python", "session": id, "code": "1"}));
    assert_eq!(error["kind"], "not_found");
    // Alone it says where it was.
    let code = "import time\nprint('begun')\ntime.sleep(60)";
    let (result, said) =
        call(&mut client, json!({"language": "python", "code": code, "timeout_ms": 300}));
    assert_eq!(result["isError"], true);
    assert_holds(
        json!({"status": "timed_out", "stdout": "begun\n",
               "error": {"kind": "deadline_exceeded", "name": "KeyboardInterrupt", "line": 3}}),
        &said,
    );
}

#[test]
fn code_that_ends_its_interpreter_ends_the_session() {
    let (_server, mut client) = start();
    for (language, code, status) in [
        (
            "python",
            "print('bye'); import sys; sys.exit(5)",
            json!({"status": "failed", "exit_code": 5}),
        ),
        (
            "javascript",
            "console.log('bye'); process.exit(5)",
            json!({"status": "failed", "exit_code": 5}),
        ),
        ("bash", "echo bye; exit 5", json!({"status": "failed", "exit_code": 5})),
        (
            "python",
            "print('bye', flush=True); import os; os.kill(os.getpid(), 9)",
            json!({"status": "killed", "signal": 9}),
        ),
    ] {
        let id = cell(&mut client, language, "new", "")["session"].as_str().unwrap().to_owned();
        let said = cell(&mut client, language, &id, code);
        assert_holds(status, &said);
        assert_holds(
            json!({"stdout": "bye\n", "session": null, "warnings": ["~has ended"]}),
            &said,
        );
        let error = refused(&mut client, json!({"language": language, "session": id, "code": "1"}));
        assert_eq!(error["kind"], "not_found");
    }
}

#[test]
fn a_rule_holds_for_what_code_starts_and_the_fence_for_what_it_opens() {
    let scratch = Scratch::new();
    let rules = scratch.path().join("house.rules");
    std::fs::write(&rules, "prefix_rule(pattern = [\"uname\"], decision = \"forbidden\")\n")
        .unwrap();
    let mut server = options().arg("--rules").arg(rules.to_str().unwrap()).spawn();
    let mut client = server.connect(SESSIONS);
    let code = "import subprocess\nr = subprocess.run(['uname', '-a'], capture_output=True, text=True)\n\
                print(r.returncode, r.stdout)\nopen('/etc/forbidden', 'w')";
    let said = run(&mut client, "python", code);
    assert_holds(
        json!({"stdout": "1 \n", "error": {"name": "OSError", "message": "~Read-only file system", "line": 4},
               "sandbox": {"denials": [{"kind": "exec"}]}}),
        &said,
    );
}

#[test]
fn much_output_and_much_code_are_borne() {
    let (_server, mut client) = start();
    let (_, said) = call(
        &mut client,
        json!({"language": "python", "code": "print('x' * 99 + '\\n' * 1, end='')\nfor i in range(200000): print(i)"}),
    );
    assert_holds(json!({"status": "completed", "truncated": true, "output": "~output:"}), &said);
    assert!(
        said["stdout"].as_str().unwrap().ends_with("199999\n")
            && said["stdout"].as_str().unwrap().len() < 30_000
    );
    let rest =
        client.call("file.read", json!({"path": said["output"], "offset": 100_002, "limit": 1}));
    assert!(
        rest["result"]["content"][0]["text"].as_str().unwrap().starts_with("100000\n"),
        "{rest}"
    );
    // Eight megabytes: no command line would take them.
    for (language, code, value) in [
        ("python", format!("x = '{}'\nlen(x)", "a".repeat(8 << 20)), json!({"result": "8388608"})),
        (
            "javascript",
            format!("const x = '{}';\nx.length", "a".repeat(8 << 20)),
            json!({"result": "8388608"}),
        ),
        (
            "bash",
            format!("x={}\necho ${{#x}}", "a".repeat(8 << 20)),
            json!({"stdout": "8388608\n"}),
        ),
        (
            "perl",
            format!("$x = '{}';\nprint length($x)", "a".repeat(8 << 20)),
            json!({"stdout": "8388608"}),
        ),
    ] {
        assert_holds(value, &run(&mut client, language, &code));
    }
}

#[test]
fn what_is_not_there_says_how_to_get_it() {
    let scratch = Scratch::new();
    std::os::unix::fs::symlink("/bin/bash", scratch.path().join("bash")).unwrap();
    let mut server =
        Options::new(Transport::Stdio).env("PATH", scratch.path().to_str().unwrap()).spawn();
    let mut client = server.connect(SESSIONS);
    let listed = client.request("tools/list", json!({}))["result"]["tools"].clone();
    let tool = listed.as_array().unwrap().iter().find(|tool| tool["name"] == "code.exec").unwrap();
    assert_eq!(tool["inputSchema"]["properties"]["language"]["enum"], json!(["bash"]));
    let error = refused(&mut client, json!({"language": "python", "code": "1"}));
    assert_holds(
        json!({"kind": "unavailable", "reason": "runtime_missing", "hint": "~apt-get install python3"}),
        &error,
    );
}

#[test]
fn without_a_session_nothing_lives_on() {
    let mut server = Options::new(Transport::Http).spawn();
    let mut client = server.client(MODERN);
    client.shake_hands();
    client.handle = None;
    let error = refused(&mut client, json!({"language": "bash", "session": "new", "code": ":"}));
    assert_holds(json!({"kind": "invalid_arguments", "reason": "no_session"}), &error);
    let (_, said) = call(&mut client, json!({"language": "bash", "code": "echo hi"}));
    assert_eq!(said["stdout"], "hi\n");
}

#[test]
fn a_cancelled_call_interrupts_its_code_and_no_more() {
    let (server, mut client) = start();
    let id = cell(&mut client, "python", "new", "x = 3")["session"].as_str().unwrap().to_owned();
    let code = "open('begun', 'w').close()\nwhile True: pass";
    let request =
        client.start_call("code.exec", &json!({"language": "python", "session": id, "code": code}));
    let begun = server.workspace().join("begun");
    eventually(Duration::from_secs(10), "it has begun", || begun.exists());
    let error = refused(&mut client, json!({"language": "python", "session": id, "code": "x"}));
    assert_holds(json!({"kind": "conflict", "reason": "busy", "hint": "*"}), &error);
    client.cancel(&request);
    let mut said = Value::Null;
    eventually(Duration::from_secs(10), "it is free again", || {
        let answer =
            client.call("code.exec", json!({"language": "python", "session": id, "code": "x"}));
        said = answer["result"].clone();
        said["isError"] == false
    });
    assert!(said["content"][0]["text"].as_str().unwrap().contains(r#""result":"3""#), "{said:#}");
}
