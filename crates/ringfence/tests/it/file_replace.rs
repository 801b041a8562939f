//! `file.replace` on the real binary, where a scenario does not reach: bytes, modes, cuts and other calls at once.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::support::{Options, SESSIONS, Server, Transport};

fn server() -> Server {
    Options::new(Transport::Stdio).spawn()
}

#[test]
fn bytes_outside_of_an_edit_stay_and_so_does_the_mode() {
    let mut server = server();
    let mut client = server.connect(SESSIONS);
    let file = server.workspace().join("run.bat");
    let before = b"\xef\xbb\xbfrem \x80\xff\r\n\tset A=old  \r\n\r\nend".to_vec();
    std::fs::write(&file, &before).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let edits = json!([{"old": "set A=old", "new": "set A=new\nset B=$1"}]);
    let result =
        client.call("file.replace", json!({"path": "run.bat", "edits": edits}))["result"].clone();
    assert_eq!(result["isError"], false, "{result}");
    assert_eq!(
        std::fs::read(&file).unwrap(),
        b"\xef\xbb\xbfrem \x80\xff\r\n\tset A=new\r\nset B=$1  \r\n\r\nend"
    );
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o755);
}

#[test]
fn a_long_diff_is_cut_and_read_on() {
    let mut server = server();
    let mut client = server.connect(SESSIONS);
    let text: String = (0..3000).map(|line| format!("line {line} old\n")).collect();
    std::fs::write(server.workspace().join("f"), &text).unwrap();
    let edits = json!([{"old": "old", "new": "new", "expect": 3000}]);
    let call = json!({"path": "f", "edits": edits, "diff": "unified"});
    let reply = client.call("file.replace", call)["result"]["structuredContent"].clone();
    assert_eq!(
        (&reply["replacements"], &reply["diff_truncated"]),
        (&json!(3000), &json!(true)),
        "{reply}"
    );
    assert!(reply.to_string().len() < 8 << 10, "{} bytes", reply.to_string().len());
    let tail =
        client.call("file.read", json!({"path": reply["output"], "offset": -3}))["result"].clone();
    assert!(tail["content"][0]["text"].as_str().unwrap().contains("+line 2999 new\n"), "{tail}");
    // What file.write changes can be as long.
    let call = json!({"path": "f", "content": text, "diff": "unified"});
    let reply = client.call("file.write", call)["result"]["structuredContent"].clone();
    let tail =
        client.call("file.read", json!({"path": reply["output"], "offset": -3}))["result"].clone();
    assert!(tail["content"][0]["text"].as_str().unwrap().contains("+line 2999 old\n"), "{tail}");
}

#[test]
fn many_files_are_edited_or_none() {
    let mut server = server();
    let mut client = server.connect(SESSIONS);
    for at in 0..60 {
        let folder = server.workspace().join(format!("d{}", at % 7));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{at}.txt")), format!("name = old_name // {at}\n"))
            .unwrap();
    }
    let edits = json!([{"old": r"\bold_name\b", "new": "new_name", "regex": true}]);
    let dry = json!({"path": ".", "glob": ["*.txt"], "edits": edits, "dry_run": true});
    let seen = client.call("file.replace", dry)["result"]["structuredContent"].clone();
    assert_eq!(
        (&seen["replacements"], seen["files"].as_array().unwrap().len()),
        (&json!(60), 60),
        "{seen}"
    );
    for (total, error) in [(59, true), (60, false)] {
        let call = json!({"path": ".", "glob": ["*.txt"], "edits": edits, "total_expected": total});
        let result = client.call("file.replace", call)["result"].clone();
        assert_eq!(result["isError"], error, "{result}");
        let word = if error { "old_name" } else { "new_name" };
        for at in 0..60 {
            let text =
                std::fs::read_to_string(server.workspace().join(format!("d{}/{at}.txt", at % 7)))
                    .unwrap();
            assert_eq!(text, format!("name = {word} // {at}\n"));
        }
    }
}

/// Calls that edit one file at once: each edit is made, none is lost.
#[test]
fn edits_of_one_file_at_once_are_all_made() {
    let mut server = server();
    let mut client = server.connect(SESSIONS);
    let words: Vec<String> = (0..40).map(|at| format!("word{at:02}")).collect();
    std::fs::write(server.workspace().join("f"), words.join("\n")).unwrap();
    let edit =
        |word: &String| json!({"path": "f", "edits": [{"old": word, "new": format!("<{word}>")}]});
    let ids: Vec<String> =
        words.iter().map(|word| client.start_call("file.replace", &edit(word))).collect();
    for (id, word) in ids.into_iter().zip(&words) {
        let mut result = client.finish(id, "file.replace", &edit(word))["result"].clone();
        // Who was too late too often is told so, and nothing has happened.
        while result["structuredContent"]["error"]["reason"] == "busy" {
            result = client.call("file.replace", edit(word))["result"].clone();
        }
        assert_eq!(result["isError"], false, "{result}");
    }
    let expected: Vec<String> = words.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(std::fs::read_to_string(server.workspace().join("f")).unwrap(), expected.join("\n"));
    assert_eq!(std::fs::read_dir(server.workspace()).unwrap().count(), 1);
}
