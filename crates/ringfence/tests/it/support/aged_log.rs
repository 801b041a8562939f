//! An audit log that looks as if it had been written a year earlier. Records are sealed, so that takes its key.

use std::path::{Path, PathBuf};

use aws_lc_rs::hmac;

use super::server::Scratch;

/// `,"mac":"<64 hex>"}` at the end of a line.
const MAC_MEMBER: usize = 8 + 64 + 2;

/// The log files of a scratch directory, oldest first.
pub fn log_files(scratch: &Scratch) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(scratch.path().join("root/audit")).unwrap();
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    files
}

/// Moves every record, name and link of the log to the year before, and seals them again. No server may run.
pub fn age_by_a_year(scratch: &Scratch) {
    let key = hmac::Key::new(
        hmac::HMAC_SHA256,
        &std::fs::read(scratch.path().join("root/audit/key")).unwrap(),
    );
    let files = log_files(scratch);
    // What is replaced in later files: names, and macs that links repeat.
    let mut replaced: Vec<(String, String)> =
        files.iter().map(|file| (stem(file), year_before(&stem(file)))).collect();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let (name, old_name) = (format!("{}.jsonl", year_before(&stem(file))), file);
        let (mut previous, mut sealed, mut seq) = ([0; 32].to_vec(), String::new(), 0);
        for line in text.lines() {
            let (body, member) = line.split_at(line.len() - MAC_MEMBER);
            let mut body =
                replaced.iter().fold(body.to_owned(), |body, (from, to)| body.replace(from, to));
            let year = body.find("\"ts\":\"").unwrap() + 6;
            let aged = year_before(&body[year..year + 4]);
            body.replace_range(year..year + 4, &aged);
            previous = seal(&key, "record", &[&previous, body.as_bytes(), b"}"]);
            replaced.push((member[8..72].to_owned(), hex(&previous)));
            sealed.push_str(&format!("{body},\"mac\":\"{}\"}}\n", hex(&previous)));
            seq += 1;
        }
        let stated = format!("{{\"seq\":\"{seq:020}\",\"mac\":\"{}\"", hex(&previous));
        let check = hex(&seal(&key, "head", &[name.as_bytes(), b"\n", stated.as_bytes()]));
        let aged = file.with_file_name(&name);
        std::fs::write(&aged, sealed).unwrap();
        std::fs::write(aged.with_extension("head"), format!("{stated},\"check\":\"{check}\"}}\n"))
            .unwrap();
        std::fs::remove_file(old_name).unwrap();
        std::fs::remove_file(old_name.with_extension("head")).unwrap();
        let mac = hex(&seal(&key, "latest", &[name.as_bytes()]));
        std::fs::write(
            file.with_file_name("latest"),
            format!("{:<191}\n", format!("{{\"file\":\"{name}\",\"mac\":\"{mac}\"}}")),
        )
        .unwrap();
    }
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap().to_str().unwrap().to_owned()
}

/// A text that begins with a year, with the year before it instead.
fn year_before(text: &str) -> String {
    format!("{:04}{}", text[..4].parse::<u32>().unwrap() - 1, &text[4..])
}

fn seal(key: &hmac::Key, purpose: &str, parts: &[&[u8]]) -> Vec<u8> {
    hmac::sign(key, &[&[purpose.as_bytes(), b"\n"], parts].concat().concat()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
