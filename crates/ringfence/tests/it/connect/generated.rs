//! Files of clients, generated from a seed: comments, odd spacing, all forms of tables.

/// Small generator of numbers; the same seed gives the same file.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }

    pub fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.below(items.len())]
    }

    fn often(&mut self) -> bool {
        self.below(3) > 0
    }
}

const COMMENTS: &[&str] =
    &["# note", "#", "# [mcp_servers.ringfence]", "# \"quoted\" = 'x' ü", "\t# tab"];
const TOML_VALUES: &[&str] = &[
    "1",
    "20.0",
    "true",
    "\"text # no comment\"",
    "'C:\\path'",
    "[1, 2, 3]",
    "[\n  \"a\", # first\n  # between\n  \"b\",\n]",
    "{ a = 1, b = { c = \"d\" } }",
    "\"\"\"\nlines\n[not.a.table]\n\"\"\"",
    "1979-05-27T07:32:00Z",
];

/// Returns a valid TOML file.
pub fn toml_file(seed: u64) -> String {
    let mut dice = Dice::new(seed);
    let mut text = String::new();
    let mut count = 0;
    let mut pairs = |dice: &mut Dice, text: &mut String, indent: &str| {
        for _ in 0..dice.below(4) {
            count += 1;
            if dice.below(4) == 0 {
                text.push_str(&format!("{indent}{}\n", dice.pick(COMMENTS)));
            }
            let equals = dice.pick(&[" = ", "=", "  =  "]);
            let value = dice.pick(TOML_VALUES);
            let end = dice.pick(&["", "", " # why", "  "]);
            text.push_str(&format!("{indent}key_{count}{equals}{value}{end}\n"));
            text.push_str(dice.pick(&["", "", "\n", "\n\n"]));
        }
    };
    pairs(&mut dice, &mut text, "");
    match dice.below(6) {
        0 => text.push_str("mcp_servers = { one = { command = \"x\" } } # inline\n"),
        1 => text.push_str("mcp_servers.dotted.command = \"x\"\nmcp_servers.dotted.args = []\n"),
        2 => text.push_str("features = { web = true }\n"),
        3 => text.push_str("features.web = true # dotted\n"),
        _ => {}
    }
    let (has_servers, has_features) = (
        text.contains("mcp_servers = "),
        text.contains("features = ") || text.contains("features."),
    );
    let mut headers = vec!["[tui]", "[profiles.\"a b\"]", "[projects.\"/home/me\"]"];
    if !has_servers {
        headers.extend(["[mcp_servers.one]", "[mcp_servers.one.env]", "[ mcp_servers . two ]"]);
    }
    if !has_features {
        headers.push("[features]");
    }
    for header in headers {
        if dice.often() {
            let indent = dice.pick(&["", "", "  "]);
            let end = dice.pick(&["", " # section"]);
            text.push_str(&format!("{indent}{header}{end}\n"));
            if header == "[features]" && dice.often() {
                let value = dice.pick(&["true", "false"]);
                text.push_str(&format!("{indent}shell_tool = {value} # mine\n"));
            }
            pairs(&mut dice, &mut text, indent);
            text.push_str(dice.pick(&["", "\n", "# end\n\n"]));
        }
    }
    finish_text(&mut dice, text)
}

fn finish_text(dice: &mut Dice, mut text: String) -> String {
    if dice.below(4) == 0 {
        text = text.trim_end().to_owned();
    }
    if dice.below(4) == 0 {
        text = text.replace('\n', "\r\n");
    }
    if dice.below(8) == 0 {
        text.insert(0, '\u{feff}');
    }
    text
}

const JSON_VALUES: &[&str] = &[
    "1",
    "-2.50e3",
    "null",
    "true",
    "\"text // no comment\"",
    "\"\\u00fc \\\" \\\\\"",
    "[]",
    "{}",
    "[1, 2 /* two */, 3]",
    "[\n    \"a\", // first\n    /* between */\n    \"b\"\n  ]",
    "{\"a\": 1, \"b\": {\"c\": [{}]}}",
];

/// Returns a JSON file with comments, in which `tables` may already be.
pub fn json_file(seed: u64, tables: &[&str]) -> String {
    let mut dice = Dice::new(seed);
    let compact = dice.below(4) == 0;
    let indent = dice.pick(&["  ", "    ", "\t"]);
    let mut members: Vec<String> = (0..dice.below(5))
        .map(|number| {
            format!("\"key_{number}\"{}{}", dice.pick(&[": ", ":", " : "]), dice.pick(JSON_VALUES))
        })
        .collect();
    for table in tables {
        let value = match dice.below(4) {
            0 => "{}".to_owned(),
            1 if compact => "{\"other\": {\"x\": [1]}}".to_owned(),
            1 => format!(
                "{{\n{indent}{indent}// inside\n{indent}{indent}\"other\": {{\"x\": [1]}}\n{indent}}}"
            ),
            _ => continue,
        };
        let at = dice.below(members.len() + 1);
        members.insert(at, format!("\"{table}\": {value}"));
    }
    let mut text = String::new();
    text.push_str(dice.pick(&["", "// top\n", "/* top */ "]));
    if compact {
        text.push_str(&format!("{{{}}}", members.join(dice.pick(&[",", ", "]))));
        return finish_json(&mut dice, text);
    }
    text.push_str("{\n");
    let last = members.len().wrapping_sub(1);
    for (number, member) in members.iter().enumerate() {
        if dice.below(4) == 0 {
            text.push_str(&format!("{indent}// before {number}\n"));
        }
        let comma = if number == last { dice.pick(&["", ","]) } else { "," };
        let end = dice.pick(&["", "", " // after", "\n"]);
        text.push_str(&format!("{indent}{member}{comma}{end}\n"));
    }
    text.push_str(dice.pick(&["", "  // last\n"]));
    text.push('}');
    text.push_str(dice.pick(&["", "\n", "\n// bottom\n"]));
    finish_json(&mut dice, text)
}

fn finish_json(dice: &mut Dice, text: String) -> String {
    if dice.below(5) == 0 { text.replace('\n', "\r\n") } else { text }
}
