//! Files of all encodings, written, read and edited by the real binary, next to a model of what should become of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ringfence::etag_from_bytes;
use serde_json::{Value, json};

use crate::each_case;
use crate::model::{Edit, Model, any_text};
use crate::rng::Rng;
use crate::stdio::Server;

struct Bench {
    server: Server,
    calls: u64,
}

impl Bench {
    fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.calls += 1;
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        let message =
            json!({"jsonrpc": "2.0", "id": self.calls, "method": "tools/call", "params": params});
        self.server.send(message.to_string().as_bytes(), arguments);
        let answer = self.server.answer(arguments);
        assert_eq!(answer["id"], self.calls, "{answer} for {arguments}");
        answer["result"].clone()
    }

    fn on_disk(&self) -> Vec<u8> {
        std::fs::read(self.server.stage.workspace().join("f")).unwrap()
    }
}

fn reason(result: &Value) -> Option<&str> {
    (result["isError"] == true)
        .then(|| result["structuredContent"]["error"]["reason"].as_str().unwrap_or("?"))
}

/// All bytes, in as many calls as it takes.
fn read_bytes(bench: &mut Bench, step: usize) -> Vec<u8> {
    let (mut bytes, mut next) = (Vec::new(), Some(0));
    while let Some(at) = next {
        let call =
            json!({"path": "f", "encoding": "base64", "byte_offset": at, "byte_length": step});
        let result = bench.call("file.read", &call);
        let about = &result["_meta"]["dev.ringfence/file"];
        let text = result["content"][0]["text"].as_str().unwrap();
        // A note stands on a line of its own.
        let data = text.split('\n').next().unwrap();
        bytes.extend(STANDARD.decode(data).unwrap_or_default());
        next = about["next_byte_offset"].as_u64();
    }
    bytes
}

fn check_read(bench: &mut Bench, model: &Model, rng: &mut Rng) {
    let text = model.exact_text();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let offset = 1 + rng.below(lines.len() + 2);
    let limit = 1 + rng.below(6);
    let call = json!({"path": "f", "offset": offset, "limit": limit, "max_bytes": 200_000});
    let result = bench.call("file.read", &call);
    let expected: String = lines.iter().skip(offset - 1).take(limit).copied().collect();
    let shown = result["content"][0]["text"].as_str().unwrap_or_default();
    let rest = shown
        .strip_prefix(&expected)
        .unwrap_or_else(|| panic!("{shown:?} for {expected:?} of {model:?}"));
    let noted = rest.strip_prefix('\n').unwrap_or(rest);
    assert!(
        noted.is_empty() || noted.starts_with('[') && noted.ends_with(']'),
        "{rest:?} of {model:?}"
    );
    let about = &result["_meta"]["dev.ringfence/file"];
    assert_eq!(about["etag"], etag_from_bytes(&model.bytes()), "{about}");
    assert_eq!(about["total_lines"], lines.len(), "{about} of {model:?}");
    let step = 1 + rng.below(400);
    assert_eq!(read_bytes(bench, step), model.bytes());
}

fn any_edit(rng: &mut Rng, model: &Model) -> Edit {
    let characters: Vec<char> = model.text().chars().collect();
    let start = rng.below(characters.len() + 1);
    let most = *rng.pick(&[1, 2, 4, 30]);
    let length = rng.below((characters.len() - start).min(most) + 1);
    // What is nobody's may be part of no edit: see the unit tests.
    let mut old: String =
        characters[start..start + length].iter().take_while(|c| **c != '\u{fffd}').collect();
    if rng.one_in(8) || old.is_empty() {
        old.push_str(rng.pick::<&str>(&["zz", "a", "\n", "ab"]));
    }
    let regex = rng.one_in(3);
    let unicode = model.is_unicode() || rng.one_in(6);
    let mut new = any_text(rng, 8, unicode).replace("${0}", "");
    if regex {
        // Each `$` that is not meant is doubled.
        new = format!("{}{}", new.replace('$', ""), rng.pick(&["", "${0}", "<${0}>"]));
        old = rng
            .pick(&[
                regex::escape(&old),
                "[a-c]+".to_owned(),
                "(?m)^".to_owned(),
                "\\n\\n".to_owned(),
            ])
            .clone();
    } else if new == old {
        new.push('x');
    }
    let probe = if regex { old.clone() } else { regex::escape(&old) };
    let count = regex::Regex::new(&probe).unwrap().find_iter(&model.text()).count();
    let expect = match rng.below(5) {
        0 => None,
        1 => Some(1),
        2 => Some(count + 1),
        _ => Some(count.max(1)),
    };
    Edit { old, new, regex, expect }
}

fn check_replace(bench: &mut Bench, model: &mut Model, rng: &mut Rng) {
    let edits: Vec<Edit> = (0..1 + rng.below(3)).map(|_| any_edit(rng, model)).collect();
    let crlf = rng.one_in(4);
    let shown = |text: &str| if crlf { text.replace('\n', "\r\n") } else { text.to_owned() };
    let raw: Vec<Value> = edits
        .iter()
        .map(|edit| {
            let old = if edit.regex { edit.old.clone() } else { shown(&edit.old) };
            json!({"old": old, "new": edit.new, "regex": edit.regex, "expect": edit.expect.unwrap_or(0)})
        })
        .collect();
    let before = model.bytes();
    let mut after = model.clone();
    let expected = after.replace(&edits);
    let dry = rng.one_in(4);
    let etag = if rng.one_in(6) { "b3:00".to_owned() } else { etag_from_bytes(&before) };
    let call = json!({"path": "f", "edits": raw, "dry_run": dry, "if_match": etag, "diff": rng.pick(&["none", "stat", "unified"])});
    let result = bench.call("file.replace", &call);
    let about = || format!("{call} of {model:?}: {result}");
    if etag == "b3:00" {
        assert_eq!(reason(&result), Some("stale"), "{}", about());
        return;
    }
    match expected {
        Err(why) => assert_eq!(reason(&result), Some(why), "{}", about()),
        Ok(counts) => {
            assert_eq!(reason(&result), None, "{}", about());
            let reply = &result["structuredContent"];
            let told: Vec<usize> = reply["edits"]
                .as_array()
                .unwrap()
                .iter()
                .map(|e| e["count"].as_u64().unwrap() as usize)
                .collect();
            assert_eq!(told, counts, "{}", about());
            assert_eq!(reply["etag"], etag_from_bytes(&after.bytes()), "{}", about());
            if !dry {
                *model = after;
            }
        }
    }
}

fn check_write(bench: &mut Bench, model: &mut Model, rng: &mut Rng) {
    let append = rng.one_in(2);
    let unicode = model.is_unicode() || rng.one_in(8);
    let body = any_text(rng, 60, unicode);
    let text = if append { body } else { format!("{}\n{body}", model.first_line()) };
    let text = if rng.one_in(4) { text.replace('\n', "\r\n") } else { text };
    let mode = if append { "append" } else { "overwrite" };
    let call = json!({"path": "f", "content": text, "mode": mode, "if_match": etag_from_bytes(&model.bytes())});
    let result = bench.call("file.write", &call);
    if !model.can_say(&text) {
        assert_eq!(reason(&result), Some("encoding_error"), "{call} of {model:?}: {result}");
        return;
    }
    assert_eq!(reason(&result), None, "{call} of {model:?}: {result}");
    if append { model.append(&text) } else { model.overwrite(&text) }
}

#[test]
fn files_behave_as_their_model_does() {
    let mut bench = Bench { server: Server::start(), calls: 0 };
    let (mut edits, mut writes) = (0u64, 0u64);
    each_case("files", 300, |rng| {
        let mut model = Model::any(rng);
        std::fs::write(bench.server.stage.workspace().join("f"), model.bytes()).unwrap();
        for _ in 0..6 {
            match rng.below(4) {
                0 => check_read(&mut bench, &model, rng),
                1 => {
                    writes += 1;
                    check_write(&mut bench, &mut model, rng);
                }
                _ => {
                    edits += 1;
                    check_replace(&mut bench, &mut model, rng);
                }
            }
            let (found, expected) = (bench.on_disk(), model.bytes());
            assert_eq!(
                found.escape_ascii().to_string(),
                expected.escape_ascii().to_string(),
                "{model:?}"
            );
            if !model.is_certain() {
                break;
            }
        }
        let left = std::fs::read_dir(bench.server.stage.workspace()).unwrap().count();
        assert_eq!(left, 3, "files were left behind");
    });
    println!("files: {edits} edits and {writes} writes in {} calls", bench.calls);
    assert!(edits > 0 && writes > 0);
    bench.server.end();
}

/// A new file has the line ends that it was given.
#[test]
fn a_new_file_is_what_was_written() {
    let mut bench = Bench { server: Server::start(), calls: 0 };
    for text in ["a\nb", "a\r\nb\n", "", "\u{feff}x", "ü😀"] {
        let _ = std::fs::remove_file(bench.server.stage.workspace().join("f"));
        assert_eq!(reason(&bench.call("file.write", &json!({"path": "f", "content": text}))), None);
        assert_eq!(bench.on_disk(), Model::written(text).bytes());
    }
    bench.server.end();
}
