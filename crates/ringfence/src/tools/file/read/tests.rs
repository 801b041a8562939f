use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use serde_json::json;

use super::*;
use crate::base::CancelCause;
use crate::base::workspace::tests::Scratch;

fn args(arguments: Value) -> Args {
    let spec = FileRead::new().spec;
    let Value::Object(map) = arguments else { panic!("an object") };
    spec.parse_arguments(&map).unwrap()
}

fn try_read(scratch: &Scratch, arguments: Value, budget: usize) -> Result<ToolOutput> {
    let args = args(arguments);
    let opened = scratch.workspace().open_read(&args.path)?;
    read_content(
        FileContent::new(opened.file, opened.path, MAX_SNAPSHOT_BYTES)?,
        &args,
        false,
        budget,
        &CancelToken::new(),
    )
}

/// The text and the metadata of a result.
fn read_text(scratch: &Scratch, arguments: Value) -> (String, Value) {
    let output = try_read(scratch, arguments, 24_000).unwrap();
    let [OutputBlock::Text(text), OutputBlock::Text(json)] = output.content.as_slice() else {
        panic!("{output:?}")
    };
    let metadata: Value = serde_json::from_str(json).unwrap();
    assert_eq!(output.meta["dev.ringfence/file"], metadata);
    assert!(output.structured.is_none());
    (text.clone(), metadata)
}

fn with_file(content: &[u8]) -> Scratch {
    let scratch = Scratch::new();
    fs::write(scratch.ws().join("f"), content).unwrap();
    scratch
}

fn numbered(count: usize) -> String {
    (1..=count).map(|line| format!("line {line}\n")).collect()
}

#[test]
fn a_small_text_comes_back_exactly() {
    let scratch = with_file("grün\n\tüber\nno end".as_bytes());
    let (text, metadata) = read_text(&scratch, json!({"path": "f"}));
    assert_eq!(text, "grün\n\tüber\nno end");
    let hash = blake3::hash(text.as_bytes()).to_hex();
    assert_eq!(metadata["etag"], format!("b3:{}", &hash[..32]));
    assert_eq!(metadata["kind"], "text");
    assert_eq!((&metadata["total_lines"], &metadata["end_line"]), (&json!(3), &json!(3)));
    assert_eq!(
        (&metadata["final_newline"], &metadata["truncated"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(
        (&metadata["size"], &metadata["eol"], &metadata["path"]),
        (&json!(19), &json!("lf"), &json!("f"))
    );
    assert!(metadata["mtime"].as_str().unwrap().ends_with('Z'), "{metadata}");
}

#[test]
fn lines_are_chosen_from_either_end() {
    let scratch = with_file(numbered(10).as_bytes());
    let (text, metadata) = read_text(&scratch, json!({"path": "f", "offset": 4, "limit": 2}));
    assert_eq!(text, "line 4\nline 5\n[lines 4-5 of 10; next offset 6]");
    assert_eq!((&metadata["truncated"], &metadata["next_offset"]), (&json!(false), &json!(6)));
    let (text, metadata) =
        read_text(&scratch, json!({"path": "f", "offset": -2, "line_numbers": true}));
    assert_eq!(text, "9\tline 9\n10\tline 10\n[lines 9-10 of 10]");
    assert_eq!(metadata.get("next_offset"), None);
    let (text, _) = read_text(&scratch, json!({"path": "f", "offset": -50, "limit": 1}));
    assert!(text.starts_with("line 1\n"), "{text}");
    let (text, _) = read_text(&scratch, json!({"path": "f", "offset": 11}));
    assert_eq!(text, "[nothing at this offset: the file has 71 bytes, 10 lines]");
    let (text, _) = read_text(&with_file(b""), json!({"path": "f"}));
    assert_eq!(text, "[empty file]");
}

#[test]
fn a_budget_cuts_between_lines_and_says_where() {
    let whole = numbered(5000);
    let scratch = with_file(whole.as_bytes());
    let (_, metadata) = read_text(&scratch, json!({"path": "f"}));
    assert_eq!((&metadata["end_line"], &metadata["truncated"]), (&json!(2000), &json!(true)));
    // Reading on from each cut gives the file back.
    let (mut back, mut offset) = (String::new(), Some(1));
    while let Some(from) = offset {
        let (text, metadata) = read_text(
            &scratch,
            json!({"path": "f", "offset": from, "limit": 10_000, "max_bytes": 9000}),
        );
        let text = text.rsplit_once('[').map_or(text.as_str(), |(text, _)| text);
        assert!(text.len() <= 9000);
        back += text;
        offset = metadata["next_offset"].as_u64();
        assert_eq!(metadata["truncated"], json!(offset.is_some()));
    }
    assert_eq!(back, whole);
    // The default leaves room for what comes with the text.
    let output = try_read(&scratch, json!({"path": "f", "limit": 4000}), 10_000).unwrap();
    let total: usize = output
        .content
        .iter()
        .map(|block| if let OutputBlock::Text(text) = block { text.len() } else { 0 })
        .sum();
    assert!((8000..=10_000).contains(&total), "{total}");
}

#[test]
fn a_line_of_three_megabytes_is_read_in_pieces() {
    let line = "añ漢😀".repeat(300_000);
    let scratch = with_file(format!("{line}\nlast\n").as_bytes());
    let (text, metadata) = read_text(&scratch, json!({"path": "f"}));
    assert!(text.len() < 24_000 && line.starts_with(&text[..20_000]), "{}", text.len());
    assert_eq!((&metadata["truncated"], &metadata["long_lines_cut"]), (&json!(true), &json!(1)));
    assert_eq!(metadata["next_offset"], 2);
    let (last, _) = read_text(&scratch, json!({"path": "f", "offset": 2}));
    assert!(last.starts_with("last\n"));

    let (mut back, mut at) = (String::new(), Some(0));
    while let Some(from) = at {
        let (text, metadata) =
            read_text(&scratch, json!({"path": "f", "byte_offset": from, "max_bytes": 262_144}));
        back += text.rsplit_once("\n[").map_or(text.as_str(), |(text, _)| text);
        at = metadata["next_byte_offset"].as_u64();
    }
    assert_eq!(back, format!("{line}\nlast\n"));
}

#[test]
fn other_encodings_are_text_too() {
    let japanese =
        "日本語のテキストです。これは文字コードの判定を試すための文章です。\r\n二行目\r\n";
    let chinese = "这是一个用来测试编码检测的中文文件。内容要足够长才能判断。\n第二行\n";
    let utf16: Vec<u8> = [0xff, 0xfe]
        .into_iter()
        .chain(japanese.encode_utf16().flat_map(u16::to_le_bytes))
        .collect();
    let samples: [(Vec<u8>, &str, &str, &str); 4] = [
        (encoding_rs::GBK.encode(chinese).0.into_owned(), "gbk", "lf", chinese),
        (encoding_rs::SHIFT_JIS.encode(japanese).0.into_owned(), "shift_jis", "crlf", japanese),
        (utf16, "utf-16le", "crlf", japanese),
        ([b"\xef\xbb\xbf".as_slice(), japanese.as_bytes()].concat(), "utf-8", "crlf", japanese),
    ];
    for (bytes, encoding, eol, expected) in samples {
        let scratch = with_file(&bytes);
        let (text, metadata) = read_text(&scratch, json!({"path": "f"}));
        assert!(text.starts_with(expected), "{encoding}: {text}");
        assert_eq!((&metadata["encoding"], &metadata["eol"]), (&json!(encoding), &json!(eol)));
        assert_eq!(metadata["total_lines"], 2);
        let (second, _) =
            read_text(&scratch, json!({"path": "f", "offset": 2, "encoding": encoding}));
        assert!(second.starts_with(expected.lines().nth(1).unwrap()), "{encoding}: {second}");
    }
    let (text, metadata) =
        read_text(&with_file(b"caf\xe9"), json!({"path": "f", "encoding": "utf-8"}));
    assert!(text.starts_with("caf\u{fffd}"), "{text}");
    assert_eq!(metadata["lossy"], true);
}

#[test]
fn binary_is_described_and_sent_as_base64_on_request() {
    let bytes: Vec<u8> = (0..=255u8).cycle().take(100_000).collect();
    let scratch = with_file(&bytes);
    let (text, metadata) = read_text(&scratch, json!({"path": "f"}));
    assert!(
        text.starts_with(
            "[binary file, application/octet-stream, 100000 bytes; first bytes 000102"
        ),
        "{text}"
    );
    assert_eq!(metadata["kind"], "binary");
    let (mut back, mut at) = (Vec::new(), Some(0));
    while let Some(from) = at {
        let (text, metadata) =
            read_text(&scratch, json!({"path": "f", "encoding": "base64", "byte_offset": from}));
        back.extend(STANDARD.decode(text.split('\n').next().unwrap()).unwrap());
        at = metadata["next_byte_offset"].as_u64();
        assert_eq!(metadata["truncated"], json!(at.is_some()));
    }
    assert_eq!(back, bytes);
    let (text, metadata) = read_text(
        &scratch,
        json!({"path": "f", "encoding": "base64", "byte_offset": 1, "byte_length": 3}),
    );
    assert!(text.starts_with("AQID\n"), "{text}");
    assert_eq!((&metadata["truncated"], &metadata["next_byte_offset"]), (&json!(false), &json!(4)));
}

#[test]
fn an_image_is_an_image_block_after_its_metadata() {
    let png = [b"\x89PNG\r\n\x1a\n".as_slice(), &[0; 100]].concat();
    let scratch = with_file(&png);
    let output = try_read(&scratch, json!({"path": "f"}), 10_000).unwrap();
    let [OutputBlock::Text(json), OutputBlock::Image { data, mime }] = output.content.as_slice()
    else {
        panic!("{output:?}")
    };
    let metadata: Value = serde_json::from_str(json).unwrap();
    assert_eq!((metadata["kind"].as_str(), mime.as_str()), (Some("image"), "image/png"));
    assert_eq!(STANDARD.decode(data).unwrap(), png);
    assert!(output.structured.is_none());
    // One that is too large for a message is described.
    fs::File::options()
        .write(true)
        .open(scratch.ws().join("f"))
        .unwrap()
        .set_len(MAX_IMAGE_BYTES + 1)
        .unwrap();
    let (text, _) = read_text(&scratch, json!({"path": "f"}));
    assert!(
        text.starts_with("[image/png, ") && text.contains("5242881 bytes: images larger than"),
        "{text}"
    );
}

/// The result states the image's size and how to get a visible version; the command contains only
/// harmless parts of the file's own name.
#[test]
fn a_large_image_says_its_size_and_how_to_make_it_smaller() {
    let png = [
        &b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"[..],
        &[0, 0, 7, 0xd0, 0, 0, 3, 0xe8],
        b"\x08\x02\0\0\0",
    ]
    .concat();
    let scratch = with_file(&png);
    let output = try_read(&scratch, json!({"path": "f"}), 24_000).unwrap();
    let [OutputBlock::Text(json), OutputBlock::Image { .. }] = output.content.as_slice() else {
        panic!("{output:?}")
    };
    let about: Value = serde_json::from_str(json).unwrap();
    assert_eq!((&about["width"], &about["height"]), (&json!(2000), &json!(1000)));
    assert!(about["hint"].as_str().unwrap().contains("magick f -crop"), "{about}");
    let odd = "x; rm -rf $(y).png";
    fs::write(scratch.ws().join(odd), &png).unwrap();
    fs::File::options()
        .write(true)
        .open(scratch.ws().join(odd))
        .unwrap()
        .set_len(MAX_IMAGE_BYTES + 1)
        .unwrap();
    let (text, about) = read_text(&scratch, json!({"path": odd}));
    assert_eq!((&about["kind"], &about["width"]), (&json!("binary"), &json!(2000)));
    assert!(text.contains("2000x1000 pixels") && text.contains("magick IN -resize"), "{text}");
}

#[test]
fn an_unchanged_file_is_not_sent_again() {
    let scratch = with_file(b"same\n");
    let (_, metadata) = read_text(&scratch, json!({"path": "f"}));
    let (text, again) =
        read_text(&scratch, json!({"path": "f", "if_none_match": metadata["etag"]}));
    assert_eq!(
        (text.as_str(), &again["kind"]),
        ("[unchanged since it had this etag]", &json!("unchanged"))
    );
    fs::write(scratch.ws().join("f"), "other").unwrap();
    let (text, _) = read_text(&scratch, json!({"path": "f", "if_none_match": metadata["etag"]}));
    assert_eq!(text, "other");
}

#[test]
fn five_gigabytes_are_not_read_for_ten_lines() {
    let scratch = Scratch::new();
    let file = fs::File::create(scratch.ws().join("huge.log")).unwrap();
    file.write_all_at(numbered(20_000).as_bytes(), 0).unwrap();
    file.set_len(5 << 30).unwrap();
    file.write_all_at(b"\ntail 1\ntail 2\n", (5 << 30) - 15).unwrap();
    let start = Instant::now();
    let (text, metadata) =
        read_text(&scratch, json!({"path": "huge.log", "offset": 3, "limit": 2}));
    assert_eq!(text, "line 3\nline 4\n[lines 3-4; next offset 5]");
    assert!(metadata["etag"].as_str().unwrap().starts_with("w:"), "{metadata}");
    assert_eq!(metadata.get("total_lines"), None);
    let (text, metadata) = read_text(&scratch, json!({"path": "huge.log", "offset": -2}));
    assert_eq!(text, "tail 1\ntail 2\n");
    assert_eq!(metadata.get("start_line"), None);
    let error =
        try_read(&scratch, json!({"path": "huge.log", "offset": -2, "line_numbers": true}), 10_000)
            .unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge);
    // Reading all five would take longer than this by far, even on a fast disk.
    assert!(start.elapsed().as_secs() < 1, "{:?}", start.elapsed());
}

#[test]
fn a_cancelled_read_ends() {
    let scratch = with_file(&vec![b'x'; 3 << 20]);
    let opened = scratch.workspace().open_read("f").unwrap();
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::Client);
    let content = FileContent::new(opened.file, opened.path, MAX_SNAPSHOT_BYTES).unwrap();
    let error =
        read_content(content, &args(json!({"path": "f"})), false, 10_000, &cancel).unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);
}

#[test]
fn a_stored_output_is_text_whatever_is_in_it() {
    let scratch = with_file(b"made\0by a command\n");
    let content = FileContent::new(
        fs::File::open(scratch.ws().join("f")).unwrap(),
        "output:o-1".into(),
        MAX_SNAPSHOT_BYTES,
    )
    .unwrap();
    let output = read_content(
        content,
        &args(json!({"path": "output:o-1"})),
        true,
        10_000,
        &CancelToken::new(),
    )
    .unwrap();
    let OutputBlock::Text(text) = &output.content[0] else { panic!("text") };
    assert_eq!(text, "made\0by a command\n");
}

#[test]
fn arguments_that_make_no_sense_together_are_refused() {
    for wrong in [
        json!({"path": "f", "offset": 0}),
        json!({"path": "f", "offset": 1, "byte_offset": 1}),
        json!({"path": "f", "encoding": "base64", "limit": 3}),
        json!({"path": "f", "encoding": "klingon"}),
    ] {
        assert_eq!(
            args(wrong.clone()).validate().unwrap_err().kind(),
            Kind::InvalidArguments,
            "{wrong}"
        );
    }
}

#[test]
fn the_schemas_are_flat() {
    let spec = FileRead::new().spec;
    for schema in [Some(spec.input_schema), spec.output_schema] {
        let text = serde_json::to_string(&schema).unwrap();
        for word in ["anyOf", "oneOf", "allOf", "$ref", "\"null\"", "[\"string\""] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}

#[test]
fn an_offset_past_every_end_is_empty() {
    let scratch = Scratch::new();
    fs::write(scratch.ws().join("f"), "text\n").unwrap();
    let large = fs::File::create(scratch.ws().join("large")).unwrap();
    std::io::Write::write_all(&mut &large, "x".repeat(65 << 20).as_bytes()).unwrap();
    for offset in [100, 1u64 << 63, u64::MAX] {
        for path in ["f", "large"] {
            let offset = if path == "large" { offset.max(1 << 40) } else { offset };
            let (text, _) = read_text(&scratch, json!({"path": path, "byte_offset": offset}));
            assert!(text.starts_with("[nothing at this offset"), "{path} {offset}: {text}");
        }
    }
    // Of one that was not looked through it is not known that it has no line ends.
    let (_, metadata) = read_text(&scratch, json!({"path": "large", "max_bytes": 1024}));
    assert_eq!(metadata.get("eol"), None, "{metadata}");
}

/// Whole values get their names on the way out. Halves would not, and two reads would make a whole.
#[test]
fn no_read_shows_a_part_of_a_secret() {
    const VALUE: &str = "read-in-halves-0123456789";
    crate::redact::known_secrets::register_secrets([(
        "HALVES",
        &crate::redact::secret::Secret::new(VALUE),
    )]);
    let long = format!("{}{VALUE}{}\nend\n", "a".repeat(100), "b".repeat(100));
    let scratch = with_file(long.as_bytes());
    let halves = |text: &str| {
        (4..VALUE.len()).any(|at| text.contains(&VALUE[..at]) || text.contains(&VALUE[at - 4..]))
    };
    for at in 90..=130 {
        for arguments in [
            json!({"path": "f", "byte_offset": at, "byte_length": 60}),
            json!({"path": "f", "byte_offset": at - 60, "byte_length": 60}),
            json!({"path": "f", "max_bytes": at}),
            json!({"path": "f", "max_bytes": at, "line_numbers": true}),
        ] {
            let (text, metadata) = read_text(&scratch, arguments.clone());
            let rest = text.replace(VALUE, "");
            assert!(!halves(&rest), "{arguments}: {text}");
            assert!(metadata["next_byte_offset"].is_u64(), "{arguments}: {metadata}");
        }
    }
    // What there is to show is shown at its place.
    let (text, _) = read_text(&scratch, json!({"path": "f", "byte_offset": 98, "byte_length": 6}));
    assert!(text.starts_with("aa****"), "{text}");
    let (text, _) = read_text(&scratch, json!({"path": "f"}));
    assert_eq!(text, long);
}

/// Base64, hex and a wrong encoding are other ways of writing the same bytes.
#[test]
fn no_encoding_gives_out_what_text_hides() {
    const VALUE: &str = "given-out-encoded-0123456789";
    crate::redact::known_secrets::register_secrets([(
        "ENCODED",
        &crate::redact::secret::Secret::new(VALUE),
    )]);
    let decoded = |scratch: &Scratch, arguments: Value| {
        let (text, _) = read_text(scratch, arguments);
        let base64 = text.lines().next().unwrap().to_owned();
        (STANDARD.decode(base64).unwrap(), text)
    };
    let holds = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);

    let plain = format!("before {VALUE} after, and some more.\n");
    let scratch = with_file(plain.as_bytes());
    let (bytes, text) = decoded(&scratch, json!({"path": "f", "encoding": "base64"}));
    assert_eq!(String::from_utf8(bytes).unwrap(), plain.replace(VALUE, &"*".repeat(VALUE.len())));
    assert!(text.contains("secret values are shown as `*`"), "{text}");
    // Byte by byte, as a caller would who puts the pieces together.
    for at in 0..plain.len() {
        let (bytes, _) = decoded(
            &scratch,
            json!({"path": "f", "encoding": "base64", "byte_offset": at, "byte_length": 1}),
        );
        let is_secret = (7..7 + VALUE.len()).contains(&at);
        assert_eq!(
            bytes,
            if is_secret { b"*".as_slice() } else { &plain.as_bytes()[at..=at] },
            "byte {at}"
        );
    }

    // As UTF-16, which text mode reads as text.
    for big in [false, true] {
        let unit = |unit: u16| if big { unit.to_be_bytes() } else { unit.to_le_bytes() };
        let wide = |text: &str| text.encode_utf16().flat_map(unit).collect::<Vec<u8>>();
        let scratch = with_file(&wide(&format!("\u{feff}{plain}")));
        let (bytes, _) = decoded(&scratch, json!({"path": "f", "encoding": "base64"}));
        assert!(
            !holds(&bytes, &wide(&VALUE[..4])) && holds(&bytes, &wide("after")),
            "big endian: {big}"
        );
    }

    // ASCII that is read as UTF-16 comes out as other characters, which hold the same bytes.
    for label in ["utf-16le", "utf-16be"] {
        for padding in ["", "x"] {
            let scratch = with_file(format!("{padding}{plain}").as_bytes());
            let (text, _) = read_text(&scratch, json!({"path": "f", "encoding": label}));
            let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
            let swapped: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
            assert!(
                !holds(&bytes, &VALUE.as_bytes()[..6]) && !holds(&swapped, &VALUE.as_bytes()[..6]),
                "{label}"
            );
        }
    }

    // The first bytes of a binary file are shown in hex.
    let scratch = with_file(&[[0, 1, 2, 3].as_slice(), VALUE.as_bytes(), &[0; 80]].concat());
    let (text, _) = read_text(&scratch, json!({"path": "f"}));
    assert!(
        text.contains("00010203")
            && !text.contains(&crate::base::ids::to_hex(&VALUE.as_bytes()[..4])),
        "{text}"
    );
    // What is taken for an image is sent whole.
    let scratch =
        with_file(&[b"GIF89a\x01\0\x01\0\0\0\0".as_slice(), VALUE.as_bytes(), &[0; 80]].concat());
    let output = try_read(&scratch, json!({"path": "f"}), 24_000).unwrap();
    let Some(OutputBlock::Image { data, .. }) = output.content.get(1) else { panic!("{output:?}") };
    assert!(!holds(&STANDARD.decode(data).unwrap(), &VALUE.as_bytes()[..4]));
}
